"""The namespace that the array API standard's own suite is run over: each function of the namespace that stand-ins give,
compiled by itself; what creates arrays, types and constants as outside of compiled functions. Fallbacks are errors.
``test_array_api.py`` runs the suite, where it is there.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.numpy import *  # noqa: F403

__array_api_version__ = "2024.12"
_OUTSIDE = {  # give no arrays, or arrays that depend on no other
    "arange", "asarray", "astype", "can_cast", "empty", "eye", "finfo", "from_dlpack", "full", "iinfo", "isdtype",
    "linspace", "ones", "result_type", "zeros",
}  # fmt: skip


def _compiled(name: str, function):
    """``function`` of the namespace of its first array, compiled for these arguments."""

    def call(*args, **kwargs):
        given = args[0] if isinstance(args[0], (list, tuple)) else args
        first = next(x for x in given if hasattr(x, "__array_namespace__"))
        return getattr(first.__array_namespace__(), name)(*args, **kwargs)

    compiled = mlirfuse.jit(call)

    @functools.wraps(function)
    def run(*args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("error", mlirfuse.FallbackWarning)
            return compiled(*args, **kwargs)

    return run


def _function(name: str):
    function = getattr(mnp, name)
    return function if name in _OUTSIDE or isinstance(function, type) else _compiled(name, function)


for _name in (n for n in dir(mnp) if not n.startswith("_") and callable(getattr(mnp, n)) and hasattr(np, n)):
    globals()[_name] = _function(_name)
