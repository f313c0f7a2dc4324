locals {
  # A zone's number is part of its id and never changes, so a zone keeps its addresses when others come and go. Zones
  # are numbered from 1; part 0 is that of the NAT gateway.
  subnet_of_zone = { for zone in module.placement.zones : zone => cidrsubnet(var.cidr, 4, tonumber(regex("[0-9]+$", zone))) }
  nat            = local.private ? toset([sort(module.placement.zones)[0]]) : toset([])

  # Other roots of the run find the network of this one by its name.
  place = merge(var.labels, { Name = "${var.name}-${var.region}" })
}

resource "aws_vpc" "run" {
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = local.place
}

resource "aws_internet_gateway" "run" {
  vpc_id = aws_vpc.run.id
  tags   = local.place
}

resource "aws_route_table" "run" {
  vpc_id = aws_vpc.run.id
  tags   = local.place
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.run.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = local.private ? null : aws_internet_gateway.run.id
  nat_gateway_id         = local.private ? one(values(aws_nat_gateway.run)).id : null
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
  tags        = local.place
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each = local.private ? toset([]) : toset([var.ssh_from])

  security_group_id = aws_security_group.node.id
  description       = "SSH from the caller"
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
  tags              = var.labels
}

resource "aws_vpc_security_group_ingress_rule" "training" {
  for_each = module.placement.ports

  security_group_id            = aws_security_group.node.id
  description                  = "Training traffic among the nodes of the run, ${each.key}"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "tcp"
  from_port                    = each.value.first
  to_port                      = each.value.last
  tags                         = var.labels
}

# Between clouds all traffic goes through WireGuard, whose port only the nodes on the other one reach.
resource "aws_vpc_security_group_ingress_rule" "overlay" {
  for_each = toset(var.peers)

  security_group_id = aws_security_group.node.id
  description       = "WireGuard from a node on another cloud"
  cidr_ipv4         = each.value
  ip_protocol       = "udp"
  from_port         = 51820
  to_port           = 51820
  tags              = var.labels
}

# EFA's own protocol has no ports, and works among members of a group that let everything of each other in and out
# (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
resource "aws_vpc_security_group_ingress_rule" "efa" {
  for_each = local.efa

  security_group_id            = aws_security_group.node.id
  description                  = "EFA among the nodes of the run"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  tags                         = var.labels
}

resource "aws_vpc_security_group_egress_rule" "efa" {
  for_each = local.efa

  security_group_id            = aws_security_group.node.id
  description                  = "EFA among the nodes of the run"
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  tags                         = var.labels
}

resource "aws_vpc_security_group_egress_rule" "out" {
  security_group_id = aws_security_group.node.id
  description       = "Packages, buckets and the other nodes"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
  tags              = var.labels
}

# Nodes without a public address reach package indexes through NAT, and buckets without paying NAT for every byte.
resource "aws_subnet" "nat" {
  for_each = local.nat

  vpc_id               = aws_vpc.run.id
  availability_zone_id = each.key
  cidr_block           = cidrsubnet(var.cidr, 4, 0)
  tags                 = merge(var.labels, { Name = "${var.name}-nat" })
}

resource "aws_route_table" "nat" {
  for_each = local.nat

  vpc_id = aws_vpc.run.id
  tags   = merge(var.labels, { Name = "${var.name}-nat" })
}

resource "aws_route" "nat" {
  for_each = local.nat

  route_table_id         = aws_route_table.nat[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.run.id
}

resource "aws_route_table_association" "nat" {
  for_each = local.nat

  subnet_id      = aws_subnet.nat[each.key].id
  route_table_id = aws_route_table.nat[each.key].id
}

resource "aws_eip" "nat" {
  for_each = local.nat

  domain = "vpc"
  tags   = merge(var.labels, { Name = "${var.name}-nat" })

  depends_on = [aws_internet_gateway.run]
}

resource "aws_nat_gateway" "run" {
  for_each = local.nat

  subnet_id     = aws_subnet.nat[each.key].id
  allocation_id = aws_eip.nat[each.key].id
  tags          = merge(var.labels, { Name = "${var.name}-nat" })

  depends_on = [aws_route.nat, aws_route_table_association.nat]
}

resource "aws_vpc_endpoint" "s3" {
  for_each = local.nat

  vpc_id            = aws_vpc.run.id
  vpc_endpoint_type = "Gateway"
  service_name      = "com.amazonaws.${var.region}.s3"
  route_table_ids   = [aws_route_table.run.id]
  tags              = merge(var.labels, { Name = "${var.name}-s3" })
}
