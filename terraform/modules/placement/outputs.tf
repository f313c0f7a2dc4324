output "zones" {
  description = "Zones in which nodes are placed."
  value       = local.zones
}

output "nodes_by_zone" {
  description = "Ids of the nodes in each zone, sorted."
  value       = local.nodes_by_zone
}

output "groups" {
  description = "Compact placement groups by name, each with zone and node ids."
  value       = { for name, ids in local.groups : name => { zone = var.nodes[ids[0]].zone, nodes = ids } }
}

output "group_of" {
  description = "Name of the compact placement group of each node that has one."
  value       = merge([for name, ids in local.groups : { for id in ids : id => name }]...)
}
