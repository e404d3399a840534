"""AOTAutograd's graphs: tracing, decompositions, the joint graph and its partition into forward and backward."""
