"""The first screen: plans to choose from, what they leave out, and what their GPUs cost elsewhere."""
