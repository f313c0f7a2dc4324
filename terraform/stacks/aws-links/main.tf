# Few retries, as in stacks/aws.
provider "aws" {
  region      = var.regions[0]
  max_retries = 4
}

provider "aws" {
  alias       = "accepter"
  region      = var.regions[1]
  max_retries = 4
}

locals {
  run  = { sailor-cloud-run = var.labels["sailor-cloud-run"] }
  here = merge(local.run, { Name = "${var.name}-${var.regions[0]}" })
  # The other end; a group of another region can't be named in a rule, so rules name its addresses.
  there = merge(local.run, { Name = "${var.name}-${var.regions[1]}" })
  name  = "${var.name}-${join("--", var.regions)}"
}

data "aws_vpc" "requester" {
  tags = local.here
}

data "aws_route_table" "requester" {
  tags = local.here
}

data "aws_security_group" "requester" {
  tags = local.here
}

data "aws_vpc" "accepter" {
  provider = aws.accepter
  tags     = local.there
}

data "aws_route_table" "accepter" {
  provider = aws.accepter
  tags     = local.there
}

data "aws_security_group" "accepter" {
  provider = aws.accepter
  tags     = local.there
}

resource "aws_vpc_peering_connection" "link" {
  vpc_id      = data.aws_vpc.requester.id
  peer_vpc_id = data.aws_vpc.accepter.id
  peer_region = var.regions[1]
  auto_accept = false
  tags        = merge(var.labels, { Name = local.name })
}

resource "aws_vpc_peering_connection_accepter" "link" {
  provider = aws.accepter

  vpc_peering_connection_id = aws_vpc_peering_connection.link.id
  auto_accept               = true
  tags                      = merge(var.labels, { Name = local.name })
}

resource "aws_route" "requester" {
  route_table_id            = data.aws_route_table.requester.id
  destination_cidr_block    = data.aws_vpc.accepter.cidr_block
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.link.vpc_peering_connection_id
}

resource "aws_route" "accepter" {
  provider = aws.accepter

  route_table_id            = data.aws_route_table.accepter.id
  destination_cidr_block    = data.aws_vpc.requester.cidr_block
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.link.vpc_peering_connection_id
}

resource "aws_vpc_security_group_ingress_rule" "requester" {
  for_each = var.ports

  security_group_id = data.aws_security_group.requester.id
  description       = "Training traffic from the run's nodes in ${var.regions[1]}, ${each.key}"
  cidr_ipv4         = data.aws_vpc.accepter.cidr_block
  ip_protocol       = "tcp"
  from_port         = each.value.first
  to_port           = each.value.last
  tags              = var.labels
}

resource "aws_vpc_security_group_ingress_rule" "accepter" {
  for_each = var.ports
  provider = aws.accepter

  security_group_id = data.aws_security_group.accepter.id
  description       = "Training traffic from the run's nodes in ${var.regions[0]}, ${each.key}"
  cidr_ipv4         = data.aws_vpc.requester.cidr_block
  ip_protocol       = "tcp"
  from_port         = each.value.first
  to_port           = each.value.last
  tags              = var.labels
}
