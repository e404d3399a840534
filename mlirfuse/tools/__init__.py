"""Programs: mlirfuse-opt, running a function of a file, making a failing graph small, fitting coefficients."""
