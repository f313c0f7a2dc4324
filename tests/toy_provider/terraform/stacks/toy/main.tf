terraform {
  required_version = ">= 1.5"
}

variable "cloud" {
  description = "Folder in which a machine is a file."
  type        = string
}

variable "name" {
  description = "First part of all names."
  type        = string
}

variable "labels" {
  description = "What every machine carries."
  type        = map(string)
}

variable "region" {
  description = "Region of the machines."
  type        = string
}

variable "nodes" {
  description = "Nodes by id."
  type        = map(object({ zone = string, instance_type = string, spot = bool }))
}

module "cluster" {
  source = "../../modules/toy-cluster"

  cloud  = var.cloud
  name   = var.name
  labels = var.labels
  region = var.region
  nodes  = var.nodes
}
