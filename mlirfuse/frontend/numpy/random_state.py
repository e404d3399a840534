"""Whether a function draws NumPy's random numbers while it is traced."""

from __future__ import annotations

import sys

import numpy as np


def generator_states(roots) -> list:
    """What tells whether NumPy random numbers were drawn: from NumPy's own generator, or one that the function can
    see."""
    module = sys.modules.get("numpy.random.mtrand")
    if module is None:
        return []
    state = module._rand.get_state(legacy=False)
    out = (
        [(state["state"]["pos"], int(state["state"]["key"][0]), state["has_gauss"], state["gauss"])]
        if "key" in state["state"]
        else []
    )
    for _, _, _, value in roots:
        if isinstance(value, np.random.Generator):
            out.append(str(value.bit_generator.state))
        elif isinstance(value, np.random.RandomState):
            out.append(str(value.get_state()))
    return out
