"""Functions with loops on GPU arrays: control flow stays in Python, and each straight-line region between jumps is
compiled once, whatever the trip counts."""
