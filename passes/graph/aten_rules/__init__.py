"""Rules of `decompose`, by family. A rule takes a builder and an `aten` operation and returns the replacing values."""
