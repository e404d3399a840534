"""The tensor-level IR as Python objects: graph, sizes, element types, and ``ops``, the table of operations."""
