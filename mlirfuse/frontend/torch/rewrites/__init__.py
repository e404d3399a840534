"""Rewrites of torch's FX graphs; ``fx_passes.py`` lists them in the order in which they run."""
