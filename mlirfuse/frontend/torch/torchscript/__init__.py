"""TorchScript's graphs as Python functions over ATen ops."""
