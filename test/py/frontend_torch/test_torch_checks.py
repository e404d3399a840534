"""torch's own checks of compiled functions, with our compilers in them: AOTAutograd's with symbolic sizes over
``op_db``, numeric gradients, and ``opcheck`` of the ops that we register."""

from __future__ import annotations

import functools
import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from test_torch_ops import OPS, SHARE, _name
from torch.nn import functional as F
from torch.testing._internal.optests import aot_autograd
from torch_ops_harness import compiled

from mlirfuse.frontend.torch.aot import decompositions
from mlirfuse.frontend.torch.as_eager import eager_strides, value_checks
from mlirfuse.frontend.torch.backend import compilers
from mlirfuse.frontend.torch.rewrites import random
from mlirfuse.frontend.torch.torch_private import aot_function

torchs_own = aot_autograd.compiled_function
close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=5e-5)


def ours(function, *_, dynamic, **__):
    """What the check calls to compile a function. A size that no input tells, which Dynamo would give as one, is a reason
    to run op by op."""
    return aot_function(function, dynamic=dynamic, **compilers(eager_random=True))


def torchs(function, *given, **more):
    """torch's own, with ops taken apart as ours are: what this changes is not ours."""
    return torchs_own(function, *given, **more, decompositions=decompositions.Table(random=False))


def check_symbolic(op, count: int, monkeypatch) -> None:
    """AOTAutograd's check of some samples with all sizes symbols; what fails with torch's own compiler, too, is not
    ours."""
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("eager has no such type")
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), count):

        def run(compiler, sample=sample):
            monkeypatch.setattr(aot_autograd, "compiled_function", compiler)
            args = (sample.input, *sample.args)
            aot_autograd.aot_autograd_check(
                op.op, args, sample.kwargs, dynamic=True, check_gradients="auto", assert_equals_fn=close
            )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "mlirfuse could not compile(?!.*no input of the graph declares)")
            try:
                run(ours)
            except Exception:
                try:
                    run(torchs)
                except Exception:
                    pytest.skip("AOTAutograd alone differs from eager")
                raise


@pytest.mark.parametrize("op", SHARE[::3])
def test_symbolic_sizes(op, monkeypatch):
    check_symbolic(op, 1, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("op", [pytest.param(op, id=_name(op)) for op in OPS])
def test_symbolic_sizes_of_all_ops(op, monkeypatch):
    check_symbolic(op, 2, monkeypatch)


FUNCTIONS = {
    "layer norm": lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
    "softmax": lambda x, w: (x @ w).softmax(-1),
    "losses": lambda x, w: F.cross_entropy(x, torch.tensor([1, 3, 0])) + F.huber_loss(x, w[:3] * 2),
    "views": lambda x, w: torch.cat([x.t()[:, 1:], w[:, :2]], 1).flip(0).cumsum(0) * x[0, 0],
    "powers": lambda x, w: (x.abs() + 0.5) ** w[:3].sigmoid() + x.logsumexp(0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numeric_gradients(name):
    """``gradcheck``: the backward is the derivative of the forward, by differences in float64."""
    torch.manual_seed(0)
    x, w = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    assert torch.autograd.gradcheck(compiled(FUNCTIONS[name]), (x, w))


def test_a_symbol_is_read_off_what_is_computed_of_it():
    """The backward is given no tensor that has the size itself."""
    f = lambda x: F.pad(torch.cat([x, x]), (2, 3))  # noqa: E731
    run = ours(f, dynamic=True)
    for shape in ((4, 5), (3, 8)):
        x = torch.randn(shape, requires_grad=True)
        (found,) = torch.autograd.grad(run(x).square().sum(), x)
        torch.testing.assert_close(found, 4 * x.detach())


def test_our_ops_are_as_torch_wants_them():
    seed = torch.tensor(7)
    torch.library.opcheck(random.SEED, (torch.device("cpu"),))
    for op in random.NUMBERS:
        for dtype in (torch.float32, torch.float64):
            torch.library.opcheck(op, (seed, 2, [3, 5], dtype))
    x = torch.rand(3, 4)
    torch.library.opcheck(value_checks.CHECKED, (x, x >= 0, "negative"))
    torch.library.opcheck(eager_strides.RESTRIDED, (x, [1, 3]))
