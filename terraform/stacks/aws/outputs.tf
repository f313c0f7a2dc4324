output "nodes" {
  description = "Nodes by id: name, zone, instance type, address for SSH and address for training."
  value       = module.cluster.nodes
}

output "network" {
  description = "The run's network: its self link on Google Cloud, which other regions use, and its id on AWS."
  value       = module.cluster.network
}

output "outside_timer" {
  description = "Whether something outside the nodes ends them at the expiry too."
  value       = module.cluster.outside_timer
}
