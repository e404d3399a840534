"""Runs lowered graphs: as host programs, as recorded CUDA graphs, or op by op with torch's own ops."""
