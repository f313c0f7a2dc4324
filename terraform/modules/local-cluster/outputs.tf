output "nodes" {
  description = "Zone of every node that was created, by node id. Address and host key are in node.json of its folder."
  value       = { for id, node in terraform_data.node : id => { zone = node.output.zone } }
}
