"""Programs as plain Python objects: graph, sizes, element types, and ``ops``, the table of operations."""
