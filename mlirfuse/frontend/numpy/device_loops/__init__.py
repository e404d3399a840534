"""Functions with loops, on arrays of a GPU: the loops stay Python's, and each stretch of statements between their jumps
is compiled once, whatever the trip counts."""
