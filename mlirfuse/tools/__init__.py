"""Command-line programs and developer tools: mlirfuse-opt, running a function of a file, reducing a failing graph,
fitting coefficients."""
