"""Data-parallel wrappers: what of them runs in eager, and what between is captured."""
