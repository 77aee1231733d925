"""GPUs through Triton: text, cubins, launches."""
