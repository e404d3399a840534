"""MLIR text of kernels and host functions, and the ways from there to LLVM IR and PTX."""
