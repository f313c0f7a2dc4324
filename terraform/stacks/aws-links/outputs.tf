output "link" {
  description = "Id of the peering connection."
  value       = aws_vpc_peering_connection_accepter.link.vpc_peering_connection_id
}
