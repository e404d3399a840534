"""What holds for all tests."""

from __future__ import annotations

import sys

import pytest

FEW = 3  # cases of a test that `make test` runs


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    """Mark as ``thorough`` what `make test` leaves out: of a test with more than FEW cases all but FEW, which are spread
    evenly over their order."""
    cases: dict[tuple, list] = {}
    for item in items:
        cases.setdefault((item.path, getattr(item, "originalname", item.name), item.cls), []).append(item)
    for several in cases.values():
        kept = {round(k * (len(several) - 1) / (FEW - 1)) for k in range(FEW)}
        for at, item in enumerate(several):
            if len(several) > FEW and at not in kept:
                item.add_marker(pytest.mark.thorough)


def pytest_collection_finish(session) -> None:
    """No graph comes from torch's cache, where an earlier run left it: test_torch_warm says where it wants that."""
    if "torch" in sys.modules:
        from torch._functorch import config

        config.enable_autograd_cache = False
