"""Masks and attention kernels: what a mask hides, and the fastest kernel that torch has for it."""
