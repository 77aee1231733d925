"""Tensors that the IR cannot hold, and library calls on them."""
