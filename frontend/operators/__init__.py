"""Operators of torch's that look at values or at memory, or are kernels of many operators, written out: rows of the registry."""

from . import arrays, covariance, fused_steps, istft, strided

METHODS = covariance.METHODS | strided.METHODS
ROWS = (arrays.ROWS, covariance.ROWS, fused_steps.ROWS, istft.ROWS, strided.ROWS)
