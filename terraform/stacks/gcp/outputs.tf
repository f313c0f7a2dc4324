output "nodes" {
  description = "Nodes by id: name, zone, instance type, address for SSH and address for training."
  value       = module.cluster.nodes
}

output "network" {
  description = "Self link of the run's network, for roots in other regions."
  value       = module.cluster.network
}
