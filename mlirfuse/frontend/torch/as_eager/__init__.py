"""Eager's strides and errors, where torch's decompositions and fake tensors differ."""
