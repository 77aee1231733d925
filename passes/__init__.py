"""The passes: each takes one decision, each in one file; the manager puts them in order."""
