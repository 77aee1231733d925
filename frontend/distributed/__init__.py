"""Several processes: what of data-parallel wrappers runs in eager, and their talk as operators of a graph."""
