"""Intarsia: an optimizing compiler for PyTorch programs."""
