"""Analyses of a segment: iteration axes, phases of reductions, stages, memory traffic."""
