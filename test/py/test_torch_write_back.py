"""Inputs that a graph writes at its end are written by one call; ``torch.compile(optimizer.step)``."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from test_torch_ways import compiled
from torch_models import ResNet

import mlirfuse.torch
from mlirfuse.frontend.torch import backend


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def calls():
    """How often each op runs as torch's own, and how many kernels, of each graph that is compiled."""
    found = []

    def observer(which, lowered, host):
        names = [name for name, _, _ in lowered.outside]
        found.append({name: names.count(name) for name in names} | {"kernels": len(host.kernels)})

    backend.observers.append(observer)
    yield found
    backend.observers.remove(observer)


OPTIMIZERS = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=True),
    "SGD": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, foreach=True),
}


def stepped(name, count, compile_it):
    """Parameters after some steps, and the gradients' own generator."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(5, 4 + k % 3)) for k in range(count)]
    optimizer = OPTIMIZERS[name](params)
    step = torch.compile(optimizer.step, backend="mlirfuse", options={"fallback": False})
    for _ in range(4):
        for p in params:
            p.grad = torch.randn_like(p)
        (step if compile_it else optimizer.step)()
    return [p.detach() for p in params]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_step_has_as_many_calls_whatever_its_tensors(name, calls):
    seen = []
    for count in (3, 9):
        torch._dynamo.reset()
        calls.clear()
        found = stepped(name, count, True)
        torch.testing.assert_close(found, stepped(name, count, False), rtol=1e-5, atol=1e-6)
        seen.append(calls[-1])
    assert {k: v for k, v in seen[0].items() if k != "kernels"} == {k: v for k, v in seen[1].items() if k != "kernels"}
    assert seen[0]["aten._foreach_copy_.default"] == 1 and "aten.copy_.default" not in seen[0]


def test_statistics_of_norms_are_written_by_one_call_a_type():
    ours = ResNet()
    theirs, batch = copy.deepcopy(ours), (torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,)))
    forward = mlirfuse.torch.explain(ours, *batch).graphs[0]
    written = {op: n for (op, _, _), n in forward.outside.items() if "copy_" in op}
    assert sum(written.values()) == 2 and set(written) == {"aten._foreach_copy_.default"}  # float32 and int64
    run = compiled(ours)
    for _ in range(3):
        run(*batch), theirs(*batch)
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=key)


def test_inputs_that_change_places_and_overlap():
    def f(a, b, c, d):
        old = a.clone()
        a.copy_(b)
        b.copy_(old)
        c.copy_(d.t() * 2)
        d.add_(old)
        return a.sum() + c.sum()

    given = [torch.randn(4, 4) for _ in range(4)]
    wanted = [x.clone() for x in given]
    result = f(*wanted)
    torch.testing.assert_close(compiled(f)(*given), result)
    torch.testing.assert_close(given, wanted, rtol=0, atol=0)


def test_a_write_that_converts_or_repeats_is_torchs_own():
    def f(a, b, c):
        a.copy_((b * 2).to(torch.float64))
        b.copy_(c[0] + 1)
        c.mul_(2)

    given = [torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4), torch.randn(3, 4)]
    wanted = [x.clone() for x in given]
    f(*wanted)
    compiled(f)(*given)
    torch.testing.assert_close(given, wanted)
