"""The version of this package. pyproject.toml reads it here, because querying the installed package's metadata takes 15
ms."""

__version__ = "0.1.0"

# The releases of torch that the back end was tested with; here, as `python -m mlirfuse info` imports no torch.
TORCH_TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")
