"""What holds for all tests."""

from __future__ import annotations

import sys


def pytest_collection_finish(session) -> None:
    """No graph comes from torch's cache, where an earlier run left it: test_torch_warm says where it wants that."""
    if "torch" in sys.modules:
        from torch._functorch import config

        config.enable_autograd_cache = False
