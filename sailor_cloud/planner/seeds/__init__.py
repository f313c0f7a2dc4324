"""First plans of a search, and seeds of the local search.

`homogeneous` draws equal pipelines on one machine type within a fraction of a second; every search starts with them.
For large jobs, `mixed` adds two kinds of seeds: pipelines through nodes that hold the same stages of several of them
(`node_patterns`), and one group of equal pipelines per accelerator (`group_search`). Where no homogeneous plan fits,
`fitting` draws one pipeline over nodes of all sizes. `docs/decisions/planner-search.md` has the loss without each.
"""
