"""Facts of FX graphs that the other folders read: nodes, sizes, memory layouts, purity, source lines."""
