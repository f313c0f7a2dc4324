provider "aws" {
  region = var.region

  # The provider takes a zone without capacity for something that passes; see the stack of the nodes.
  max_retries = 4
}

data "aws_availability_zone" "of" {
  for_each = toset([for reservation in var.reservations : reservation.zone])

  zone_id = each.value
}

# Nodes name the reservation that they take, so that nobody else's do; it ends with the run's nodes at the latest.
resource "aws_ec2_capacity_reservation" "run" {
  for_each = var.reservations

  availability_zone       = data.aws_availability_zone.of[each.value.zone].name
  instance_type           = each.value.instance_type
  instance_count          = each.value.nodes
  instance_platform       = "Linux/UNIX"
  instance_match_criteria = "targeted"
  ebs_optimized           = true
  end_date_type           = "limited"
  end_date                = var.expires_at
  tags                    = merge(var.labels, { Name = "${var.name}-${each.key}", sailor-cloud-capacity = each.key })
}

# Paid for whole when it is made. A destroy takes it out of the state and nothing else: nobody can cancel a block.
resource "aws_ec2_capacity_block_reservation" "run" {
  for_each = var.blocks

  capacity_block_offering_id = each.value.offering
  instance_platform          = "Linux/UNIX"
  tags                       = merge(var.labels, { Name = "${var.name}-${each.key}", sailor-cloud-capacity = each.key })

  lifecycle {
    # The offering is gone once it is bought, and another id would buy a second block.
    ignore_changes = [capacity_block_offering_id]
  }
}
