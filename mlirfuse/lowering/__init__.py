"""Emits MLIR text of kernels and host functions, and lowers it to LLVM IR and PTX."""
