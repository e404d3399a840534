import mlirfuse.frontend.numpy.tracing  # noqa: F401  (before the modules that it imports at its end)
