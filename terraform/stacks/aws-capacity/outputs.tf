output "reservations" {
  description = "Ids by the name of the entry of capacity."
  value = merge(
    { for name, made in aws_ec2_capacity_reservation.run : name => made.id },
    { for name, made in aws_ec2_capacity_block_reservation.run : name => made.id },
  )
}
