"""Operators that take functions: these are captured, too, as graphs that a node of the graph around them names."""
