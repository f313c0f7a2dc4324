"""First plans of a search, and seeds of the local search.

`homogeneous` draws equal pipelines on one machine type within a fraction of a second; every search starts with them.
For large jobs, `mixed` runs two kinds of seeds in all promising parts of the space. These are node patterns (`blocks`)
and one group of equal pipelines per accelerator (`group_search`). A third kind takes the whole space: pipelines through
several zones, with the replicas of each stage in one zone (`zone_chains`). `docs/decisions/planner-search.md` has the
loss without the first two.
"""
