"""Our dialect of MLIR."""
