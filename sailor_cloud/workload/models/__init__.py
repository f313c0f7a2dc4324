"""Models as layers: presets, Hugging Face configs and users' modules."""
