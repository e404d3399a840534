"""What every layer uses: errors, settings, environment variables, device properties, locks, MLIR's Python bindings."""
