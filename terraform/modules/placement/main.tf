locals {
  zones = toset([for node in var.nodes : node.zone])

  nodes_by_zone = { for zone in local.zones : zone => sort([for id, node in var.nodes : id if node.zone == zone]) }

  # Providers place instances of one type in one zone close together; a single instance has nobody to be close to.
  candidates = { for id, node in var.nodes : "${node.zone}--${replace(node.instance_type, ".", "-")}" => id... if node.compact }
  groups     = { for name, ids in local.candidates : name => sort(ids) if length(ids) > 1 }
}
