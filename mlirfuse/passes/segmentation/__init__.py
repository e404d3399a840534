"""Segmentation of a group's ops, for ``fusion-segment``."""
