"""Schemas of the resources that the HCL uses: extracts of hashicorp/google and hashicorp/aws; see NOTICE."""
