"""NumPy programs as people write them, unchanged: ``PROGRAMS`` gives each function, and its arguments for a size."""
