output "nodes" {
  description = "Nodes by id: name, zone, instance type, address for SSH and address for training."
  value = {
    for id, node in aws_instance.node : id => {
      name            = node.id
      zone            = var.nodes[id].zone
      instance_type   = node.instance_type
      address         = var.ssh_from == null ? node.private_ip : contains(local.with_address, id) ? aws_eip.node[id].public_ip : node.public_ip
      private_address = node.private_ip
    }
  }
}

output "network" {
  description = "Id of the run's network in this region."
  value       = aws_vpc.run.id
}
