"""First plans of large jobs, from node patterns and groups of equal pipelines."""
