"""The pipeline: layout, process groups, stages, their schedule and the transfers between them."""
