"""Inputs that a graph writes at its end; ``torch.compile(optimizer.step)``: few launches, whatever its tensors."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from test_torch_ways import compiled
from torch_models import ResNet

import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.lowering import host_steps as st


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
        foreach = [step for step in host.sequence.steps if isinstance(step, st.Foreach)]
        told = {"members": sorted(step.members for step in foreach), "kernels": len(host.kernels)}
        told["in place"] = [len(step.region.graph.aliases) for step in foreach]
        told["copies"] = sum(isinstance(step, st.Copy) for step in host.sequence.steps)
        found.append({name: names.count(name) for name in names} | told)

    backend.observers.append(observer)
    yield found
    backend.observers.remove(observer)


OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
}


def stepped(name, foreach, count, steps, compile_it):
    """Parameters after some steps, in float32, of the same gradients."""
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(*((5, 4 + k % 3) if k % 2 else (32 * (1 + k % 5),)))) for k in range(count)
    ]
    created, options = OPTIMIZERS[name]
    optimizer = created(params, lr=1e-2, foreach=foreach, **options)
    step = torch.compile(optimizer.step, backend="mlirfuse", options={"fallback": False})
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn_like(p)
        (step if compile_it else optimizer.step)()
    state = [value for s in optimizer.state.values() for value in s.values() if isinstance(value, torch.Tensor)]
    return [p.detach() for p in params] + state


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_step_is_two_launches_whatever_its_tensors(name, foreach, calls):
    seen = []
    for count in (18, 26):
        torch._dynamo.reset()
        calls.clear()
        found = stepped(name, foreach, count, 20, True)
        torch.testing.assert_close(found, stepped(name, foreach, count, 20, False), rtol=2e-5, atol=2e-6)
        seen.append(calls[-1])
    for told, count in zip(seen, (18, 26)):
        members = told.pop("members")
        assert len(members) == 2 and sum(members) in (count, count - 1)  # lines of whole vectors, and others
        assert told["in place"] == [2 if name == "SGD" else 3] * 2
        assert not any(key.startswith("aten.") for key in told)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "each",
    [torch.clone, torch.neg, lambda x: torch.addcmul(x, x, x), lambda x: x * x + x],
    ids=["clone", "neg", "addcmul", "sum"],
)
def test_numbers_are_launched_apart_from_tensors(each):
    """Of which none has whole vectors of elements."""
    given = [torch.randn(shape) for shape in [(), (5,), (), (3, 7), (), (2, 3)]]
    torch._dynamo.reset()
    run = torch.compile(lambda xs: list(map(each, xs)), backend="mlirfuse", options={"fallback": False})
    for found, x in zip(run(given), given, strict=True):
        assert torch.allclose(found, each(x))


def test_parameters_that_do_not_lie_row_major_are_stepped_apart(calls):
    def created():
        torch.manual_seed(0)
        return [torch.nn.Parameter(torch.randn(6, 4).t() if k % 3 == 0 else torch.randn(6, 4)) for k in range(15)]

    ours, theirs = created(), created()
    for params, step in ((ours, True), (theirs, False)):
        optimizer = torch.optim.SGD(params, lr=0.1, foreach=True)
        run = torch.compile(optimizer.step, backend="mlirfuse", options={"fallback": False}) if step else optimizer.step
        for _ in range(2):
            for k, p in enumerate(params):
                p.grad = torch.full_like(p, k + 1.0)
            run()
    assert calls[-1]["members"] == [10]
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def test_what_a_member_reads_of_another_is_not_written_under_it(calls):
    def f(*xs):
        new = [x * 2 + y for x, y in zip(xs, [*xs[1:], xs[0]])]
        for x, value in zip(xs, new):
            x.copy_(value)

    given = [torch.randn(32) for _ in range(9)]
    wanted = [x.clone() for x in given]
    f(*wanted)
    compiled(f)(*given)
    torch.testing.assert_close(given, wanted)
    assert calls[-1]["in place"] in ([], [0]) and calls[-1]["copies"] == 1


def test_an_old_value_that_is_given_back_is_not_written_over(calls):
    def f(*xs):
        old = [x.view(-1)[:4] + 0 for x in xs]
        for x in xs:
            x.mul_(3).add_(1)
        return old

    given = [torch.randn(4, 8) for _ in range(9)]
    wanted = [x.clone() for x in given]
    torch.testing.assert_close(compiled(f)(*given), f(*wanted))
    torch.testing.assert_close(given, wanted)


def test_statistics_of_norms_are_written_by_one_call_a_type():
    ours = ResNet()
    theirs, batch = copy.deepcopy(ours), (torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,)))
    forward = mlirfuse.torch.explain(ours, *batch).graphs[0]
    assert not [op for op, _, _ in forward.outside if "copy_" in op]
    assert sum(isinstance(step, st.Copy) for step in forward.host.sequence.steps) <= 1
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


def test_what_is_put_into_a_large_input_is_written_where_it_lies(calls):
    """A cache of keys by positions, one by a slice whose result is read, one by indices: none is copied."""

    def f(keys, values, scores, position, key, value):
        keys.index_copy_(1, position, key)
        values[:, 3:5] = value
        scores[position] = key[0] + 1
        return (keys.transpose(0, 1) * 2).sum(-1), values.amax() + value

    def given():
        torch.manual_seed(0)
        return [torch.randn(2, 40, 8), torch.randn(2, 40, 8), torch.randn(40, 8), torch.tensor([7, 2]),
                torch.randn(2, 2, 8), torch.randn(2, 2, 8)]  # fmt: skip

    ours, theirs = given(), given()
    places = [x.data_ptr() for x in ours]
    run = compiled(f)
    for _ in range(2):
        torch.testing.assert_close(run(*ours), f(*theirs))
        torch.testing.assert_close(ours, theirs)
    assert places == [x.data_ptr() for x in ours]
    assert calls[-1]["copies"] == 0
    told = calls[-1]
    assert told["aten.index_copy.default"] == told["aten.slice_scatter.default"] == told["aten.index_put.default"] == 1
    assert not any("copy_" in name or "clone" in name for name in told)


@pytest.mark.parametrize("how", ["read", "given back", "viewed", "before", "twice"])
def test_what_is_put_into_an_input_that_others_read_does_not_change_what_they_read(how):
    def f(cache, position, key):
        old = cache[1:3] if how in ("viewed", "before") else cache
        total = old.sum() if how == "before" else None
        new = cache.index_copy(0, position, key)
        if how == "twice":
            new = new.index_copy(0, position + 1, key * 2)
        seen = new * 2
        result = {"read": old.exp(), "viewed": old * 3, "given back": new, "before": total, "twice": new.sum()}[how]
        cache.copy_(new)
        return seen, result

    def given():
        torch.manual_seed(0)
        return [torch.randn(40, 8), torch.tensor([7, 2]), torch.randn(2, 8)]

    ours, theirs = given(), given()
    run = compiled(f)
    for _ in range(2):
        got, wanted = run(*ours), f(*theirs)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(ours, theirs)
        if how == "given back":
            got[1].zero_(), wanted[1].zero_()
            torch.testing.assert_close(ours, theirs)


GUARDED = """
import ctypes, mmap, sys

import torch
import mlirfuse.torch  # registers the backend where the package is not installed

columns = int(sys.argv[1])
nbytes = 6 * (columns + 1) * 2
whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
memory = mmap.mmap(-1, whole + mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + whole), mmap.PAGESIZE, 0) == 0
out = torch.frombuffer(memory, dtype=torch.bfloat16, count=nbytes // 2, offset=whole - nbytes).view(6, columns + 1)

@torch.compile(backend="mlirfuse", dynamic=False)
def fill(x, out):
    out.copy_(torch.nn.functional.pad(x.to(torch.bfloat16), (0, 1)))

x = torch.randn(6, columns)
fill(x, out)
assert torch.equal(out[:, :-1], x.to(torch.bfloat16)) and not out[:, -1].any()
"""


@pytest.mark.parametrize("columns", [16, 32, 64, 128])
def test_nothing_is_written_past_the_end(columns):
    """Where a row's last vector has one element, of a half type, and sizes are known; behind the tensor lies a page
    that nobody may write."""
    ran = subprocess.run([sys.executable, "-c", GUARDED, str(columns)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
