output "nodes" {
  description = "Nodes by id: name, zone, instance type, address for SSH and address for training."
  value = {
    for id, node in google_compute_instance.node : id => {
      name            = node.name
      zone            = node.zone
      instance_type   = node.machine_type
      address         = var.ssh_from == null ? node.network_interface[0].network_ip : node.network_interface[0].access_config[0].nat_ip
      private_address = node.network_interface[0].network_ip
    }
  }
}

output "network" {
  description = "Self link of the run's network, for roots in other regions."
  value       = local.network
}
