"""What the IR cannot hold: other kinds of tensors and library calls on them; backward formulas that are run as they are."""
