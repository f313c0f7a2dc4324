"""The model: layers, parameters, first values, and weights in Hugging Face form."""
