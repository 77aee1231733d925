"""Classes that the program makes inside captured code."""
