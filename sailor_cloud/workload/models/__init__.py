"""Models by layers: presets, Hugging Face configs and users' modules, counted layer by layer."""
