"""The optimizer step: gradients, weights, numeric formats and loss scaling."""
