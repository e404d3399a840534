"""Past the recompile limit: one warning, with the guard that failed and what would help."""

from __future__ import annotations

import logging
import warnings

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch  # noqa: F401  # registers the back end
from mlirfuse.frontend.torch.reports import recompiles


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=2):
        yield


def warned(f, calls, backend="mlirfuse", **how):
    """Our warnings while ``f`` is called with each of ``calls``, which has to give what plain Python gives."""
    run = torch.compile(f, backend=backend, **how)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for given in calls:
            torch.testing.assert_close(run(*given), f(*given))
    return [str(w.message) for w in seen if "recompile_limit" in str(w.message)]


def test_a_size(caplog):
    def scaled(rows):
        return rows["a"][0] * 2

    with caplog.at_level(logging.WARNING):
        told = warned(scaled, [({"a": [torch.ones(3, n)]},) for n in range(2, 8)], dynamic=False)
    (text,) = told
    assert "'scaled'" in text and __file__ in text and "compiled 2 times" in text
    assert "size mismatch at index 1. expected 3, actual 4" in text
    assert "torch._dynamo.mark_dynamic(rows['a'][0], 1)" in text
    assert not [r for r in caplog.records if "recompile_limit" in r.getMessage()], "torch tells the same once more"


def test_the_line_that_is_told_helps():
    calls = [(torch.ones(3, n),) for n in range(2, 8)]
    for (x,) in calls:
        torch._dynamo.mark_dynamic(x, 1)
    assert not warned(lambda x: x * 2, calls, dynamic=False)


def test_a_number():
    (text,) = warned(lambda x, n: x + n, [(torch.ones(2), n) for n in range(2, 8)], dynamic=False)
    assert "failed guard is n == 3" in text and "n is a number" in text


def test_what_no_line_helps_with():
    (text,) = warned(lambda x, n: x + len(n), [(torch.ones(2), "a" * n) for n in range(1, 6)])
    assert text.endswith("failed guard is n == 'aa'")


def test_other_back_ends_have_torchs_line(caplog):
    with caplog.at_level(logging.WARNING):
        assert not warned(lambda x: x * 2, [(torch.ones(n),) for n in range(2, 8)], backend="eager", dynamic=False)
    assert [r for r in caplog.records if "recompile_limit" in r.getMessage()]


def test_a_schedule_that_changes_what_the_step_has_as_a_number():
    """Its learning rate is an input of what is compiled, and the rate of decay that it changes beside that is not."""
    guard = "self.param_groups[0]['betas'][0] == 0.936"
    assert "cycle_momentum=False" in recompiles.help_with(guard)
    assert "cycle_momentum" not in recompiles.help_with("self.scale == 0.5")
    parameters = [torch.zeros(3, requires_grad=True)]
    optimizer = torch.optim.AdamW(parameters, 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=50, cycle_momentum=False)
    step = torch.compile(optimizer.step, backend="mlirfuse")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(12):
            parameters[0].grad = torch.ones(3)
            step()
            schedule.step()
    assert not [w for w in told if "was compiled" in str(w.message)]
