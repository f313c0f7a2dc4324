locals {
  private = var.ssh_from == null
  efa     = length(module.placement.efa_kinds) > 0 ? toset(["own"]) : toset([])

  # AWS gives no public address by itself to a node with several network interfaces.
  with_address = local.private ? toset([]) : toset([for id, node in var.nodes : id if length(node.efa_cards) > 1])

  # What is no image is the name of a public parameter that holds the newest image of a kind in this region.
  parameters = toset([for node in var.nodes : node.image if startswith(node.image, "/")])
}

module "placement" {
  source = "../placement"

  name         = var.name
  labels       = var.labels
  expires_at   = var.expires_at
  public_key   = var.public_key
  ssh_from     = var.ssh_from
  disk_gib     = var.disk_gib
  nodes        = var.nodes
  zone_pattern = "^[a-z]+[0-9]+-az[0-9]+$"
}

data "aws_ssm_parameter" "image" {
  for_each = local.parameters

  name = each.value
}

resource "aws_key_pair" "run" {
  key_name   = "${var.name}-${var.region}"
  public_key = var.public_key
  tags       = var.labels
}

resource "aws_placement_group" "compact" {
  for_each = module.placement.groups

  name     = "${var.name}-${each.key}"
  strategy = "cluster"
  tags     = var.labels
}

# Network interfaces that carry EFA can be asked for in a template only. The first stands for the node, all others are
# its further network cards.
resource "aws_launch_template" "efa" {
  for_each = module.placement.efa_kinds

  name = "${var.name}-${each.key}"
  tags = var.labels

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  dynamic "network_interfaces" {
    for_each = sort(distinct(concat(["00"], [for card in each.value.cards : format("%02d", card)])))

    content {
      network_card_index          = tonumber(network_interfaces.value)
      device_index                = tonumber(network_interfaces.value) == 0 ? 0 : 1
      interface_type              = contains(each.value.cards, tonumber(network_interfaces.value)) ? "efa" : "interface"
      subnet_id                   = aws_subnet.zone[each.value.zone].id
      security_groups             = [aws_security_group.node.id]
      associate_public_ip_address = length(each.value.cards) > 1 ? null : tostring(!local.private)
      delete_on_termination       = "true"
    }
  }

  tag_specifications {
    resource_type = "network-interface"
    tags          = var.labels
  }
}

resource "aws_instance" "node" {
  for_each = var.nodes

  ami                                  = startswith(each.value.image, "/") ? data.aws_ssm_parameter.image[each.value.image].insecure_value : each.value.image
  instance_type                        = each.value.instance_type
  subnet_id                            = length(each.value.efa_cards) > 0 ? null : aws_subnet.zone[each.value.zone].id
  vpc_security_group_ids               = length(each.value.efa_cards) > 0 ? null : [aws_security_group.node.id]
  associate_public_ip_address          = length(each.value.efa_cards) > 0 ? null : !local.private
  key_name                             = aws_key_pair.run.key_name
  iam_instance_profile                 = var.identity
  placement_group                      = contains(keys(module.placement.group_of), each.key) ? aws_placement_group.compact[module.placement.group_of[each.key]].name : null
  instance_initiated_shutdown_behavior = "terminate"
  ebs_optimized                        = true
  tags                                 = merge(module.placement.node_labels[each.key], { Name = module.placement.node_names[each.key] })
  volume_tags                          = merge(module.placement.node_labels[each.key], { Name = module.placement.node_names[each.key] })

  # The timer stands first: whatever fails after it, the node ends.
  user_data = join("\n", [
    templatefile("${path.module}/expiry.sh.tftpl", { expires_at = var.expires_at, lifetime_s = var.lifetime_s, public_key = var.public_key }),
    module.placement.boot_script[each.key],
  ])

  dynamic "launch_template" {
    for_each = length(each.value.efa_cards) > 0 ? [aws_launch_template.efa[module.placement.kind_of[each.key]]] : []

    content {
      id      = launch_template.value.id
      version = launch_template.value.latest_version
    }
  }

  dynamic "instance_market_options" {
    for_each = contains(["spot", "capacity-block"], each.value.market) ? [each.value.market] : []

    content {
      market_type = instance_market_options.value

      dynamic "spot_options" {
        for_each = instance_market_options.value == "spot" ? [tostring(each.value.max_usd_per_hour)] : []

        content {
          max_price                      = spot_options.value
          spot_instance_type             = "one-time"
          instance_interruption_behavior = "terminate"
        }
      }
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.capacity == null ? [] : [var.reservations[each.value.capacity]]

    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  # A session token is asked for, and no container can reach the metadata through a further hop.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    encrypted             = true
    delete_on_termination = true
    volume_size           = var.disk_gib
    volume_type           = each.value.boot_disk
  }

  timeouts {
    create = "15m"
    delete = "20m"
  }

  lifecycle {
    # A newer image that appears during the run must not replace its nodes, and neither must another plan's placement:
    # group, template and network cards are settled once and for all when an instance is created. The provider would stop
    # it to change its user data, which run at the first boot only. The disk's tags are those of volume_tags; of an
    # instance that was imported they would be taken away first.
    ignore_changes = [ami, capacity_reservation_specification, instance_market_options, launch_template, placement_group, root_block_device[0].tags, user_data]
  }

  depends_on = [
    aws_route.internet,
    aws_route_table_association.zone,
    aws_vpc_security_group_ingress_rule.efa,
    aws_vpc_security_group_egress_rule.efa,
  ]
}

resource "aws_eip" "node" {
  for_each = local.with_address

  domain            = "vpc"
  network_interface = aws_instance.node[each.key].primary_network_interface_id
  tags              = merge(module.placement.node_labels[each.key], { Name = module.placement.node_names[each.key] })

  depends_on = [aws_internet_gateway.run]
}
