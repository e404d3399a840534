"""What has been compiled so far: read these to see that new sizes compile nothing."""

kinds = 0  # graphs traced and segmented
variants = 0  # choices of schedule parameters compiled
fallbacks = 0  # calls that ran op by op


def snapshot() -> dict[str, int]:
    """The counters as a dict."""
    return {"kinds": kinds, "variants": variants, "fallbacks": fallbacks}
