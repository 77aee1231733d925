"""The dialects, one file each, in the order in which a program passes through them: aten, prim, kernel, loop, buffer."""
