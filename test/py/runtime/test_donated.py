"""Results that are written over donated arguments: the same numbers, in their memory, by each scheduler."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_concatenated_parts import OVER_ARGUMENTS, random_parts
from test_schedule_ir import layer_norm, norm_backward

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse import _native
from mlirfuse.dialects import fusion
from mlirfuse.runtime import arrays
from mlirfuse.runtime.launch_template import LaunchTemplate
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.scheduler import SizedCall


def beside_sums(x, y):
    z = np.tanh(x) * y
    return z, z.sum(0)


def before_and_after(x, y):
    z = x * y
    return z, x - z.sum(1, keepdims=True)


# A function, the shapes of its arguments (n rows of m, or m), which result is in which argument.
PROGRAMS = {
    "pointwise": (lambda x, y: (x + y, x * y), "nm nm", {0: 0, 1: 1}),
    "a smaller argument": (lambda x, b: x + b, "nm m", {0: 0}),
    "softmax of rows": (lambda x: mnp.softmax(x, axis=-1), "nm", {0: 0}),
    "softmax of columns": (lambda x: mnp.softmax(x, axis=0), "nm", {0: 0}),
    "layer norm": (layer_norm, "nm m m", {0: 0}),
    "beside sums": (beside_sums, "nm nm", {0: 0}),
    "before and after sums": (before_and_after, "nm nm", {1: 0}),
    "another argument read elsewhere": (lambda x, y: x * y[:, ::-1], "nm nm", {0: 0}),
    "softmax of rows, another read elsewhere": (lambda x, y: mnp.softmax(x, axis=-1) - y[:, ::-1], "nm nm", {0: 0}),
    # what may not be: an element is read elsewhere, or after another result has been written there
    "read elsewhere": (lambda x: x + x[:, ::-1], "nm", {}),
    "a row of it": (lambda x: x - x.sum(1, keepdims=True) + x[0], "nm", {}),
    "two before sums": (lambda x, y: (x * y, x + y, (x * y).sum(0)), "nm nm", {}),
    "several kernels": (norm_backward, "nm nm m", {}),
}
SIZES = [(24, 96), (3, 8191), (600, 64), (2000, 3), (17, 1)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_scheduler(name):
    fn, shapes, places = PROGRAMS[name]
    target = targets.cpu()
    for n, m in SIZES:
        given = [np.random.default_rng(k).standard_normal({"nm": (n, m), "m": (m,)}[s], np.float32)
                 for k, s in enumerate(shapes.split())]  # fmt: skip
        wanted = fn(*[x.astype(np.float64) for x in given])
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        lowered = mlirfuse.jit(fn).lower(*given)
        graph, env = lowered.segmented(), lowered.env
        graph.donated = set(range(len(graph.args)))
        steps = Program(graph, target, env).steps
        if m > 1:
            assert graph.aliases == places
        for step in steps:
            for params in itertools.islice(
                target.schedulers.candidates(step.analysis, SizedCall(env, {}, target.properties)), 4
            ):
                step.segment.schedule = target.schedulers.attributes(params)
                for a, b in zip(results(graph.copy(), env, [x.copy() for x in given]), wanted, strict=True):
                    assert np.abs(a - b).max() <= 1e-5 * max(1, np.abs(b).max()), (n, m, params)
            step.segment.schedule = {}


@pytest.mark.parametrize(("fn", "one", "other"), [*OVER_ARGUMENTS, *map(random_parts, range(40))])
def test_results_in_parts(fn, one, other):
    """Each scheduler's, with rows of full vectors and others; where all is read as it is written, over the argument."""
    target = targets.cpu()
    for rows, factor in (one[0], 1), (3, 1), (600, 1), (700, 3):
        given = [np.random.default_rng(0).standard_normal((rows, *shape[1:-1], shape[-1] * factor), np.float32)
                 for shape in (one, other)]  # fmt: skip
        wanted = fn(*[x.astype(np.float64) for x in given])
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        lowered = mlirfuse.jit(fn).lower(*given)
        graph, env = lowered.segmented(), lowered.env
        graph.donated = set(range(len(graph.args)))
        steps = Program(graph, target, env).steps
        assert graph.aliases or (fn, one, other) not in OVER_ARGUMENTS
        for step in steps:
            call = SizedCall(env, {}, target.properties)
            for params in itertools.islice(target.schedulers.candidates(step.analysis, call), 3):
                step.segment.schedule = target.schedulers.attributes(params)
                for a, b in zip(results(graph.copy(), env, [x.copy() for x in given]), wanted, strict=True):
                    np.testing.assert_allclose(a, b, 2e-5, 2e-5)
            step.segment.schedule = {}


def results(graph, env, args):
    """What the kernels give, each result in the argument that it has to be in."""
    program = Program(graph, targets.cpu(), env)
    alignments = {graph.args[k]: arrays.spec_of(args[k]).align for k in program.pointer_args}
    form = LaunchTemplate(graph, program, list(range(len(args))), ())
    record = form.record(program.compiled_program(env, alignments), args, env, list)
    found = _native.Dispatcher(lambda _: record)(*args)
    assert all(np.shares_memory(found[k], args[place]) for k, place in graph.aliases.items())
    return found


def test_they_are_written_down():
    lowered = mlirfuse.jit(lambda x, y: x + y).lower(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    graph = lowered.segmented()
    graph.donated = {1}
    text = fusion.to_module_text([graph])
    assert text.count("fusion.donated") == 1
    (again,) = fusion.read(fusion.parse(text))
    assert again.donated == {1} and graph.copy().donated == {1}


@pytest.mark.parametrize(
    ("f", "parts"),
    [
        (lambda h, b, w: ((h * b) @ w) * h, [set(), {0, 1}]),  # then the product's result and h
        (lambda h, b, w: ((h * b).sin(), h.t() @ w), [set()]),  # a product reads a view of h later
        (lambda h, b, w: (h @ w).tanh() * b, [{0}]),  # the product's result alone
        (lambda h, b, w: (h * b, h.t()), [set()]),  # h is given back as a view
    ],
)
def test_what_a_host_program_gives_to_its_parts(f, parts):
    """What was made on the way or donated, behind its last reader, of whichever view."""
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.proxy_tensor import make_fx

    from mlirfuse.frontend.torch.backend import lower_to_host

    given = [torch.randn(4, 4) for _ in range(3)]
    module = make_fx(f, tracing_mode="fake")(*given)
    wanted = f(*given)
    _, host = lower_to_host(module, "backward", donated=[0])
    found = host.run([x.clone() for x in given], {})
    torch.testing.assert_close(found, list(wanted) if isinstance(wanted, tuple) else [wanted])
    assert [kernels.region.graph.donated for kernels in host.kernels] == parts
