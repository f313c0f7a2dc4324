variables {
  nodes = {
    n0 = { zone = "us-central1-a", instance_type = "a2-highgpu-1g", compact = true }
    n1 = { zone = "us-central1-a", instance_type = "a2-highgpu-1g", compact = true }
    n2 = { zone = "us-central1-b", instance_type = "a2-highgpu-1g", compact = true }
    n3 = { zone = "us-central1-b", instance_type = "n1-standard-8", compact = false }
    n4 = { zone = "us-central1-b", instance_type = "n1-standard-8", compact = false }
    n5 = { zone = "us-central1-b", instance_type = "a2-highgpu-8g", compact = true }
  }
}

run "nodes_are_placed_in_their_zones" {
  command = plan

  assert {
    condition     = output.zones == toset(["us-central1-a", "us-central1-b"])
    error_message = "The zones must be those of the nodes."
  }

  assert {
    condition     = jsonencode(output.nodes_by_zone) == jsonencode({ us-central1-a = ["n0", "n1"], us-central1-b = ["n2", "n3", "n4", "n5"] })
    error_message = "Every node must stand in its own zone."
  }
}

run "only_equal_neighbours_that_allow_it_share_a_group" {
  command = plan

  assert {
    condition     = jsonencode(output.groups) == jsonencode({ us-central1-a--a2-highgpu-1g = { zone = "us-central1-a", nodes = ["n0", "n1"] } })
    error_message = "A group needs two compact nodes of one type in one zone."
  }

  assert {
    condition     = jsonencode(output.group_of) == jsonencode({ n0 = "us-central1-a--a2-highgpu-1g", n1 = "us-central1-a--a2-highgpu-1g" })
    error_message = "Only the nodes of the group may name it."
  }
}

run "no_group_is_no_error" {
  command = plan

  variables {
    nodes = { n0 = { zone = "use1-az1", instance_type = "p4d.24xlarge", compact = true } }
  }

  assert {
    condition     = length(output.groups) == 0 && length(output.group_of) == 0
    error_message = "A single node needs no group."
  }
}

run "group_names_hold_no_dots" {
  command = plan

  variables {
    nodes = {
      n0 = { zone = "use1-az1", instance_type = "p4d.24xlarge", compact = true }
      n1 = { zone = "use1-az1", instance_type = "p4d.24xlarge", compact = true }
    }
  }

  assert {
    condition     = output.group_of.n1 == "use1-az1--p4d-24xlarge"
    error_message = "Names of resources must not hold dots."
  }
}

run "empty_cluster_is_refused" {
  command         = plan
  expect_failures = [var.nodes]

  variables {
    nodes = {}
  }
}

run "wrong_node_id_is_refused" {
  command         = plan
  expect_failures = [var.nodes]

  variables {
    nodes = { "0 n" = { zone = "use1-az1", instance_type = "p4d.24xlarge", compact = true } }
  }
}
