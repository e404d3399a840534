"""What every layer uses: errors, settings, events, counters, device properties, locks, MLIR's Python bindings."""
