"""The first screen: plans to choose from, what they leave out, and the price of their GPUs elsewhere."""
