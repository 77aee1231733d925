"""The few kinds of values that the interpreter tells apart.

Values on the interpreter's stack are real Python objects, with four exceptions: a tensor is its fake twin, a
container of the user's is a shadow copy (so that the original is never touched during capture), a large mapping of
the user's is a lazy view, and a bound tensor method is a `TensorMethod`. Objects and modules of the user's stay
themselves; what is read from them is guarded, what is written to them is kept aside in `effects`.
"""
