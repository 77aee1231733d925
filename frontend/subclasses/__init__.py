"""Tensors of classes of the program's own, and its modes that see calls of torch."""
