variables {
  run_id     = "quickstart-20261121-051313-a1b2"
  python     = "/usr/bin/python3"
  public_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZWQgb25seSBieSBhIHRlc3QgcGxhbg=="
  expires_at = "2026-11-21T06:00:00Z"
  nodes = {
    n0 = { index = 0, zone = "local-a", instance_type = "local-cpu-fast", folder = "/tmp/run/nodes/n0", log = "/tmp/run/logs/n0.log" }
    n1 = { index = 1, zone = "local-b", instance_type = "local-cpu-slow", folder = "/tmp/run/nodes/n1", log = "/tmp/run/logs/n1.log" }
  }
}

run "one_resource_per_node" {
  command = plan

  assert {
    condition     = toset(keys(terraform_data.node)) == toset(["n0", "n1"])
    error_message = "Every node must be one resource under its own id."
  }

  assert {
    condition     = jsondecode(terraform_data.node["n1"].input.spec).run_id == "quickstart-20261121-051313-a1b2"
    error_message = "The node must carry the run's id."
  }
}

run "shared_index_is_refused" {
  command         = plan
  expect_failures = [var.nodes]

  variables {
    nodes = {
      n0 = { index = 0, zone = "local-a", instance_type = "local-cpu-fast", folder = "/tmp/run/nodes/n0", log = "/tmp/run/logs/n0.log" }
      n1 = { index = 0, zone = "local-b", instance_type = "local-cpu-slow", folder = "/tmp/run/nodes/n1", log = "/tmp/run/logs/n1.log" }
    }
  }
}

run "wrong_expiry_is_refused" {
  command         = plan
  expect_failures = [var.expires_at]

  variables {
    expires_at = "in ten minutes"
  }
}

run "private_key_is_refused" {
  command         = plan
  expect_failures = [var.public_key]

  variables {
    public_key = "-----BEGIN OPENSSH PRIVATE KEY-----"
  }
}
