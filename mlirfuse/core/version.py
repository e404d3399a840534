"""The version of this package. pyproject.toml reads it here, because querying the installed package's metadata takes 15
ms."""

__version__ = "0.1.0"

TORCH_TESTED = ("2.11", "2.13")  # the releases of torch that the backend was tested with
