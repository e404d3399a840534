"""MLIR dialects of this package."""
