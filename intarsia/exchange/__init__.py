"""Programs to and from other compilers' forms: text in StableHLO and linalg, StableHLO and ONNX as front ends."""
