"""Compiled models among processes, threads and interrupts: workers of a DataLoader, two models in turns, an
out-of-memory error and Ctrl-C in mid-graph; all goes on as before."""

from __future__ import annotations

import copy
import gc
import signal
import threading
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_models import Encoder, ResNet, error, gradients

import mlirfuse.torch
from mlirfuse.passes import pipelines
from mlirfuse.runtime import launches


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model):
    return torch.compile(model, backend="mlirfuse", options={"fallback": False})


def words():
    return tuple(torch.randint(0, 50, (3, 8)) for _ in range(2))


# ---- workers, threads, several models


def scaled(x):
    return (x - x.mean()) * torch.rsqrt(x.var() + 1e-3)


class Numbers(Dataset):
    """Rows that a compiled function scales, where the row is asked for: in a worker's process."""

    def __init__(self, run):
        self.run = run

    def __len__(self):
        return 12

    def __getitem__(self, k):
        return self.run(torch.arange(6.0) ** (1 + k / 12)), k


@pytest.mark.parametrize("known", [True, False])
def test_workers_of_a_data_loader(known):
    """``known``: whether the parent compiled the workers' function before they were forked."""
    run, layer = compiled(scaled), nn.Linear(6, 3)
    step = compiled(lambda x: layer(x).tanh().sum())
    if known:
        run(torch.arange(6.0))
    step(torch.ones(4, 6)).backward()
    seen = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
        for rows, places in DataLoader(Numbers(run), batch_size=4, num_workers=2):
            wanted = torch.stack([scaled(torch.arange(6.0) ** (1 + k / 12)) for k in places.tolist()])
            torch.testing.assert_close(rows, wanted)
            layer.zero_grad()
            step(rows).backward()
            found = layer.weight.grad.clone()
            layer.zero_grad()
            layer(rows).tanh().sum().backward()
            torch.testing.assert_close(found, layer.weight.grad)
            seen += len(places)
    assert seen == 12


def test_a_model_that_a_thread_compiles_and_others_train():
    model, batch = Encoder(layers=1), words()
    wanted = gradients(copy.deepcopy(model), *batch)
    run, found = compiled(model), []
    for _ in range(3):  # the first compiles, in a thread of its own; then one runs what another has compiled
        other = threading.Thread(target=lambda: found.append(gradients(run, *batch)))
        other.start()
        other.join()
    found.append(gradients(run, *batch))
    assert len(found) == 4 and all(error(x, wanted) < 1e-5 for x in found)


def test_two_models_trained_in_turns():
    created = [(Encoder(layers=1), words()), (ResNet(), (torch.randn(4, 3, 32, 32), torch.tensor([1, 3, 0, 7])))]
    alone = []
    for model, batch in created:
        mine = copy.deepcopy(model)
        alone.append(train(mine, mine, batch, 3))
    runs = [compiled(model) for model, _ in created]
    found: list[list] = [[], []]
    for _ in range(3):
        for k, (model, batch) in enumerate(created):
            found[k] += train(model, runs[k], batch, 1)
    for ours, eager in zip(found, alone):
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-4)


def train(model, run, batch, steps):
    """The losses of some steps."""
    optimizer, out = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run(*batch)
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


# ---- errors and interrupts in mid-graph

strike = {"forward": None, "backward": None}  # what happens in the op's forward and backward


def _happens(which):
    if strike[which] is not None:
        strike[which]()


@torch.library.custom_op("mlirfuse_test::struck", mutates_args=())
def struck(x: torch.Tensor) -> torch.Tensor:
    _happens("forward")
    return x.clone()


@torch.library.custom_op("mlirfuse_test::struck_backward", mutates_args=())
def struck_backward(g: torch.Tensor) -> torch.Tensor:
    _happens("backward")
    return g.clone()


for _op in (struck, struck_backward):
    _op.register_fake(torch.empty_like)
struck.register_autograd(lambda ctx, g: struck_backward(g))


class Struck(nn.Module):
    """Kernels before and behind the op, so that tensors are held where it happens."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        x = struck((self.first(x).tanh() * 2).softmax(-1))
        return (self.second(x).sigmoid() * x[:, :16]).sum()


def out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")


def control_c():
    """Also where the tests run in the background, whose processes ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def calm():
    yield
    strike.update(forward=None, backward=None)


@pytest.mark.parametrize("which", ["forward", "backward"])
@pytest.mark.parametrize(
    "what, raised",
    [(out_of_memory, torch.OutOfMemoryError), (control_c, KeyboardInterrupt)],
    ids=["memory", "control-c"],
)
@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
def test_an_error_in_mid_graph(which, what, raised, first):
    """It comes to the caller as it is, nothing stays in memory, and the next call is right."""
    model = Struck()
    run = compiled(model)
    x = torch.randn(5, 16, requires_grad=True)
    wanted = gradients(copy.deepcopy(model), x)
    if not first:
        gradients(run, x)
    gc.collect()
    before = _tensors()
    strike[which] = what
    for _ in range(3):
        with pytest.raises(raised):
            gradients(run, x)
    strike[which] = None
    if not first:
        gc.collect()
        assert _tensors() <= before
    for _ in range(2):
        assert error(gradients(run, x), wanted) < 1e-5


def _tensors() -> int:
    """How many tensors with elements are alive."""
    return sum(type(x) is torch.Tensor for x in gc.get_objects())


def test_what_failed_is_freed():
    """The tensors that a failing graph was given live no longer than their caller's names."""
    run = compiled(Struck())
    run(torch.randn(5, 16))
    strike["forward"] = out_of_memory
    x = torch.randn(5, 16)
    with pytest.raises(torch.OutOfMemoryError):
        run(x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


PLACES = {  # where a compilation is interrupted: a module or class, and a function of it
    "lowering": (mlirfuse.torch.mlirfuse.__globals__["lower_to_host"].__wrapped__.__globals__, "lower"),
    "partition": (mlirfuse.torch.mlirfuse.__globals__, "partition"),
    "passes": (pipelines.__dict__, "lower_to_segments"),
    "kernel": (launches.__dict__, "Program"),
}


@pytest.mark.parametrize(
    ("place", "when"), [(place, k) for place in PLACES for k in (1, 2) if (place, k) != ("partition", 2)]
)
def test_control_c_while_compiling(place, when, monkeypatch):
    """Ctrl-C comes to the caller, whatever was being compiled for the forward (the first time) or the backward; the
    next call compiles and is right."""
    where, name = PLACES[place]
    model, x = Struck(), torch.randn(5, 16, requires_grad=True)
    wanted = gradients(copy.deepcopy(model), x)
    original, calls = where[name], []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == when:
            control_c()
        return original(*args, **kwargs)

    monkeypatch.setitem(where, name, interrupted)
    run = compiled(model)
    with torch._functorch.config.patch(enable_autograd_cache=False), pytest.raises(KeyboardInterrupt):
        gradients(run, x)
    assert len(calls) == when
    for _ in range(2):
        assert error(gradients(run, x), wanted) < 1e-5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# ---- Python's search for garbage


@pytest.mark.parametrize("searches", [True, False])
@pytest.mark.parametrize("backend", ["mlirfuse", "eager"])
def test_nobody_looks_for_garbage_while_dynamo_traces_for_us(backend, searches):
    """Nor is the collector switched on or off for longer. Dynamo does not say for which back end it traces, so others'
    graphs are traced without it, too."""
    torch._dynamo.reset()
    compiled(scaled)(torch.arange(4.0))  # the back end is there
    seen = []
    watch = torch._dynamo.callback.on_compile_start(lambda _: seen.append(gc.isenabled()))
    try:
        if not searches:
            gc.disable()
        torch.compile(scaled, backend=backend, fullgraph=True)(torch.arange(6.0))
        assert seen == [False] and gc.isenabled() == searches
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(lambda x: print(scaled(x)), backend=backend, fullgraph=True)(torch.arange(6.0))
        assert gc.isenabled() == searches
    finally:
        torch._dynamo.callback.callback_handler.remove_start_callback(watch)
        gc.enable()
