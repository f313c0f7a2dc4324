output "nodes" {
  description = "Nodes by id: name, zone, instance type, address for SSH and address for training."
  value       = module.cluster.nodes
}

output "network" {
  description = "The run's network: its self link on Google Cloud, which other regions use, and its id on AWS."
  value       = module.cluster.network
}
