"""torch.func's transforms: the function is captured alone, its graph is transformed by torch, operator by operator."""
