output "zones" {
  description = "Zones in which nodes are placed."
  value       = local.zones

  precondition {
    condition     = alltrue([for zone in local.zones : can(regex(var.zone_pattern, zone))])
    error_message = "Every node must stand in a zone of the region: ${join(", ", local.zones)} do not all match ${var.zone_pattern}."
  }
}

output "nodes_by_zone" {
  description = "Ids of the nodes in each zone, sorted."
  value       = local.nodes_by_zone
}

output "kind_of" {
  description = "Name of zone and type together, by node."
  value       = local.kind_of
}

output "groups" {
  description = "Compact placement groups by name, each with zone and node ids."
  value       = { for name, ids in local.groups : name => { zone = var.nodes[ids[0]].zone, nodes = sort(ids) } }
}

output "group_of" {
  description = "Name of the compact placement group of each node that has one."
  value       = { for id, node in var.nodes : id => local.kind_of[id] if node.compact }
}

output "efa_kinds" {
  description = "Kinds of nodes with EFA by name, each with zone and network cards."
  value       = { for name, ids in local.with_efa : name => { zone = var.nodes[ids[0]].zone, cards = var.nodes[ids[0]].efa_cards } }
}

output "node_names" {
  description = "Name of each node's instance."
  value       = { for id in keys(var.nodes) : id => "${var.name}-${id}" }
}

output "node_labels" {
  description = "Labels or tags of each node's instance: the run's, and its own id."
  value       = { for id in keys(var.nodes) : id => merge(var.labels, { sailor-cloud-node = id }) }
}

output "ports" {
  description = "Ranges of TCP ports that nodes of a run open to each other, by what listens there."
  value       = local.ports
}

output "boot_script" {
  description = "What each node does first, as a shell script that downloads nothing and holds no secret. Terraform writes its state once per node with all scripts in it, so it is short."
  value = {
    for id, node in var.nodes : id => templatefile("${path.module}/boot.sh.tftpl", {
      first_port = local.ports.collectives.first
      last_port  = local.ports.collectives.last
    })
  }
}
