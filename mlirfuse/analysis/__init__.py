"""What is known of a segment: iteration axes, phases of reductions, stages, traffic."""
