"""Stand-in Terraform providers over a cloud in memory."""
