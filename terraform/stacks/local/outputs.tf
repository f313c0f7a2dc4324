output "nodes" {
  description = "Zone of every node that was created, by node id."
  value       = module.cluster.nodes
}
