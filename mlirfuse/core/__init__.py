"""What every layer uses: errors, switches, events, counters, machines, locks, the way to MLIR."""
