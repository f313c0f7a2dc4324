locals {
  zones = toset([for node in var.nodes : node.zone])

  nodes_by_zone = { for zone in local.zones : zone => sort([for id, node in var.nodes : id if node.zone == zone]) }

  # Nodes of one type in one zone: what is said of all of them at once has this name.
  kind_of = { for id, node in var.nodes : id => "${node.zone}--${replace(node.instance_type, ".", "-")}" }

  # Providers place instances of one type in one zone close together. A single node has its group too: an instance that
  # runs can't change its group, and neighbours may come and go during a run.
  groups = { for id, node in var.nodes : local.kind_of[id] => id... if node.compact }

  with_efa = { for id, node in var.nodes : local.kind_of[id] => id... if length(node.efa_cards) > 0 }

  # The rendezvous of a generation takes a port of the first range. NCCL and gloo listen on ports that the kernel
  # chooses, so every node is told to choose them from the second (boot.sh.tftpl).
  ports = { rendezvous = { first = 29500, last = 29599 }, collectives = { first = 32768, last = 60999 } }
}
