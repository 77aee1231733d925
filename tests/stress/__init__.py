"""Many threads at work on compiled functions: see `threads`."""
