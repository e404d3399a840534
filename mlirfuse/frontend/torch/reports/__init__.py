"""What users are told of graphs: descriptions, logs, failures with a repro script, recompilations."""
