locals {
  # A zone's number is part of its id and never changes, so a zone keeps its addresses when others come and go.
  subnet_of_zone = { for zone in module.placement.zones : zone => cidrsubnet(var.vpc_cidr, 4, tonumber(regex("[0-9]+$", zone))) }
}

module "placement" {
  source = "../placement"

  nodes = { for id, node in var.nodes : id => { zone = node.zone, instance_type = node.instance_type, compact = node.compact } }
}

resource "aws_vpc" "run" {
  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = merge(var.labels, { Name = "${var.name}-net" })
}

resource "aws_internet_gateway" "run" {
  vpc_id = aws_vpc.run.id
  tags   = merge(var.labels, { Name = "${var.name}-net" })
}

resource "aws_route_table" "run" {
  vpc_id = aws_vpc.run.id
  tags   = merge(var.labels, { Name = "${var.name}-net" })
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.run.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.run.id
}

resource "aws_subnet" "zone" {
  for_each = local.subnet_of_zone

  vpc_id               = aws_vpc.run.id
  availability_zone_id = each.key
  cidr_block           = each.value
  tags                 = merge(var.labels, { Name = "${var.name}-${each.key}" })
}

resource "aws_route_table_association" "zone" {
  for_each = aws_subnet.zone

  subnet_id      = each.value.id
  route_table_id = aws_route_table.run.id
}

resource "aws_security_group" "node" {
  name        = "${var.name}-node"
  description = "SSH from the caller, training traffic among the nodes of one run"
  vpc_id      = aws_vpc.run.id
  tags        = merge(var.labels, { Name = "${var.name}-node" })
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each = var.ssh_from == null ? toset([]) : toset([var.ssh_from])

  security_group_id = aws_security_group.node.id
  description       = "SSH from the caller"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
  tags              = var.labels
}

resource "aws_vpc_security_group_ingress_rule" "training" {
  security_group_id            = aws_security_group.node.id
  description                  = "Training traffic among the nodes of the run"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "tcp"
  from_port                    = 29500
  to_port                      = 29599
  tags                         = var.labels
}

resource "aws_vpc_security_group_egress_rule" "out" {
  security_group_id = aws_security_group.node.id
  description       = "Packages, buckets and the other nodes"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  tags              = var.labels
}

resource "aws_key_pair" "run" {
  key_name   = "${var.name}-key"
  public_key = var.public_key
  tags       = var.labels
}

resource "aws_placement_group" "compact" {
  for_each = module.placement.groups

  name     = "${var.name}-${each.key}"
  strategy = "cluster"
  tags     = var.labels
}

resource "aws_instance" "node" {
  for_each = var.nodes

  ami                                  = var.image
  instance_type                        = each.value.instance_type
  subnet_id                            = aws_subnet.zone[each.value.zone].id
  vpc_security_group_ids               = [aws_security_group.node.id]
  associate_public_ip_address          = var.ssh_from != null
  key_name                             = aws_key_pair.run.key_name
  placement_group                      = contains(keys(module.placement.group_of), each.key) ? aws_placement_group.compact[module.placement.group_of[each.key]].name : null
  instance_initiated_shutdown_behavior = "terminate"
  ebs_optimized                        = true
  tags                                 = merge(var.labels, { Name = "${var.name}-${each.key}", sailor-cloud-node = each.key })

  user_data = templatefile("${path.module}/expiry.sh.tftpl", {
    expires_at = var.expires_at
    public_key = var.public_key
  })

  dynamic "instance_market_options" {
    for_each = each.value.spot ? [tostring(each.value.max_usd_per_hour)] : []

    content {
      market_type = "spot"

      spot_options {
        max_price                      = instance_market_options.value
        spot_instance_type             = "one-time"
        instance_interruption_behavior = "terminate"
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
    volume_type           = "gp3"
    tags                  = merge(var.labels, { Name = "${var.name}-${each.key}" })
  }

  timeouts {
    create = "15m"
    delete = "20m"
  }

  depends_on = [aws_route.internet, aws_route_table_association.zone]
}

# Ends a node from outside, where the account has a role for it, in case the node's own timer can't.
resource "aws_scheduler_schedule" "terminate" {
  for_each = var.terminate_role_arn == null ? {} : aws_instance.node

  name                         = "${var.name}-${each.key}"
  schedule_expression          = "at(${formatdate("YYYY-MM-DD'T'hh:mm:ss", var.expires_at)})"
  schedule_expression_timezone = "UTC"

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
    role_arn = var.terminate_role_arn
    input    = jsonencode({ InstanceIds = [each.value.id] })
  }
}
