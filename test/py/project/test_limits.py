"""Each line of docs/reference/limits.md has a test that shows it: here, or where the subject is tested (:data:`SHOWN`)."""

from __future__ import annotations

import operator
import os
import pathlib
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest

import mlirfuse
from mlirfuse.core.errors import CompileError, UnsupportedError

ROOT = pathlib.Path(__file__).parents[3]
# How a row begins, and the tests that show it, in this file where no file is named.
SHOWN = {
    "`jit` records no gradients": ["test_a_tensor_that_requires_a_gradient_is_refused"],
    "Branches on array values": ["test_graph_breaks.py::test_programs"],
    "Arrays of torch or CuPy in a function": ["test_jit.py::test_fallback_off"],
    "On a GPU, values are read back": ["test_graph_breaks_of_tensors.py::test_programs"],
    "These fall back: `print`": ["test_effects.py::test_with_the_fallback_off_effects_are_errors_and_do_not_happen"],
    "These fall back: strings": ["test_foreign_arguments.py::test_they_run_by_numpy"],
    "Traces of more than 2,000": ["test_slow_compilations.py::test_past_the_bound_a_function_runs_op_by_op"],
    "A function that takes longer": ["test_slow_compilations.py::test_past_the_bound_a_function_runs_op_by_op"],
    "Effects are seen": [
        "test_effects.py::test_with_the_fallback_off_effects_are_errors_and_do_not_happen",
        "test_effects.py::test_clocks_and_iterators_in_containers_are_not_seen",
    ],
    "What a function reads through": ["test_what_is_read_past_names_stays"],
    "Arguments that fall back": ["test_foreign_arguments.py::test_they_run_by_numpy"],
    "A list, tuple or dict": ["test_large_graphs.py::test_what_contains_itself_is_an_error"],
    "On a GPU, arguments on two": ["test_foreign_arguments.py::test_they_run_by_numpy"],
    "A list or dict among the arguments that is": [
        "test_outside_objects.py::test_lists_and_dicts_among_the_arguments_are_returned_as_new_ones",
        "test_outside_objects.py::test_containers_from_outside_are_returned_themselves",
    ],
    "A write into an array that an object": [
        "test_outside_objects.py::test_a_write_of_what_an_array_holds_already_is_not_seen",
        "test_effects.py::test_writes_into_large_arrays",
    ],
    "A value's text": [
        "test_stand_ins.py::test_generated_programs",
        "test_stand_ins.py::test_code_that_is_not_the_users_has_no_hooks",
    ],
    "C code sees": ["test_stand_ins.py::test_code_that_is_not_the_users_has_no_hooks"],
    "Numbers, and elements": ["test_elements_of_large_arrays_are_taken_as_they_were"],
    "Ints that the function reads": ["test_an_int_that_is_read_from_an_array_is_64_bit"],
    "scikit-learn 1.9": ["test_scikit_learn_falls_back"],
    "On the CPU, loops": ["test_loops.py::test_while_break_continue"],
    "Attributes of objects": ["test_loops.py::test_while_break_continue"],
    "In a native loop": [
        "test_loops.py::test_positions_count_from_the_end_and_out_of_range_is_an_error",
        "test_loops.py::test_ints_are_compared_with_floats_exactly",
        "test_loops.py::test_a_variable_that_is_an_int_or_a_float",
    ],
    "A native loop gives none": ["test_beside_numpy.py::test_errstate_takes_effect"],
    "Assigning a number": ["test_numbers_that_an_integer_type_does_not_hold"],
    "An index out of range (": ["test_numpy_corners.py::test_positions_that_are_not_there"],
    "On a GPU, indices are clamped": ["test_indices.py::test_a_gpu_is_not_asked_by_default"],
    "Results on a GPU are row-major": ["test_beside_numpy.py::test_order_of_memory_and_sharing"],
    "A copy onto memory": [
        "test_beside_numpy.py::test_onto_every_other_element_as_if_copied",
        "test_beside_numpy.py::test_onto_every_other_element_beside_other_slices_as_numpy",
    ],
    "Kernels give none": [
        "test_beside_numpy.py::test_errstate_takes_effect",
        "test_complex.py::test_discarded_imaginary_parts_give_no_warning",
    ],
    "Matrix products": ["test_explain.py::test_library_ops_and_views", "test_ops_numeric.py::test_library"],
    "Complex numbers are": ["test_clip_of_complex_numbers_is_not_compiled"],
    "bfloat16 promotes": ["test_bfloat16_promotes_as_float16"],
    "A float that an integer": ["test_casts_of_floats_that_an_integer_type_does_not_hold"],
    "8-bit floats": ["test_bfloat16_promotes_as_float16"],
    "Scans share a segment": ["test_scans.py::test_cpu_with_reductions", "test_scans.py::test_gpu_with_reductions"],
    "On a GPU, the tile steps": ["test_scans.py::test_gpu_with_reductions"],
    "Scatter-adds have no linalg": ["test_scatter_add.py::test_gpu_ordered_sums_are_numpys"],
    "One launch for many": ["test_one_launch.py::test_others_are_launched_by_themselves"],
    "16-bit floats compute": ["test_cpu_schedules.py::test_half_types_stay_wide_between_stages"],
    "On a GPU, results that end as": ["test_gpu_emulated.py::test_quotients_of_half_types_that_are_not_rounded"],
    "Functions (`exp2`": [
        "test_math.py::test_float32",
        "test_math.py::test_float64",
        "test_math.py::test_scalars_are_as_vectors",
        "test_complex_functions.py::test_accuracy",
    ],
    "A sum of n float32": ["test_long_sums.py::test_sum_of_all"],
    "Sums by `lowering": ["test_long_sums.py::test_sum_of_all"],
    "Scans down columns": ["test_scans.py::test_float_sums_keep_to_their_bound"],
    "Scans along rows": ["test_scans.py::test_float_sums_keep_to_their_bound"],
    "`logcumsumexp` errs": ["test_scans.py::test_float_sums_keep_to_their_bound"],
    "A linear recurrence": [
        "test_scans.py::test_float_sums_keep_to_their_bound",
        "test_a_cumulative_product_multiplies_runs",
    ],
    "`logaddexp`": ["test_ops_numeric.py::test_logarithms_of_sums_near_zero"],
    "Scatter-adds (": ["test_scatter_add.py::test_gpu_ordered_sums_are_numpys"],
    "Scatter-adds on a GPU": ["test_scatter_add.py::test_gpu_ordered_sums_are_numpys"],
    "Indices of a scatter-add": ["test_numpy_corners.py::test_positions_that_are_not_there"],
    "Where `backend": ["test_where_torchs_own_tracing_differs"],
    "Strides of dimensions": ["test_torch_as_eager.py::test_strides_of_one_element_address_nothing"],
    "On a GPU a quotient": ["torch_on_gpu.py::test_extreme_values"],
    "The gradient at NaN of": ["test_torch_as_eager.py::test_gradients_of_branches_at_nan"],
    "Remainders of floats": [
        "test_torch_as_eager.py::test_remainders_are_exact_where_the_quotient_overflows",
        "test_torch_as_eager.py::test_gelu_of_infinity",
        "test_torch_as_eager.py::test_gcd_of_the_smallest_integer",
    ],
    "A backward that eager": ["test_torch_as_eager.py::test_what_was_written_since_it_was_saved_may_be_computed_again"],
    "A backward may compute": [
        "test_torch_as_eager.py::test_an_input_that_the_backward_computes_from_may_not_be_written"
    ],
    "On a CPU, a call of NumPy arrays that meets": [
        "test_indices.py::test_numpy_runs_calls_with_an_index_out_of_range_again"
    ],
    "An op whose values nothing reads": ["test_what_nothing_reads_raises_nothing"],
    "An index out of range on a CPU": ["test_torch_as_eager.py::test_indices"],
    "The sign of `torch.maximum": ["test_the_sign_of_a_maximum_of_zeros"],
    "The mean that `torch.var_mean`": ["test_a_mean_of_infinity_beside_a_variance"],
    "Results cannot be made larger": ["test_results_are_not_resized"],
    "A graph that was traced": ["test_a_graph_for_one_float_is_compiled_in_each_process"],
}
# Of what there is nothing to run: what is left to others, and where nothing runs.
STATED = ["A `FusionDefinition` runs on one device", "CUDA modules of functions", "GPUs before sm_70"]


def test_each_line_is_shown():
    text = (ROOT / "docs" / "reference" / "limits.md").read_text()
    rows = [row.removeprefix("| ") for row in text.split("\n") if row.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("limit |", "---"))]
    for row in rows:
        assert any(row.startswith(start) for start in [*SHOWN, *STATED]), f"no test shows: {row}"
    for start, tests in SHOWN.items():
        assert any(row.startswith(start) for row in rows), f"{start}: no such row"
        for test in tests:
            file, _, name = test.rpartition("::")
            source = next((ROOT / "test" / "py").rglob(file or "test_limits.py")).read_text()
            assert f"\ndef {name}(" in source, f"{start}: there is no {test}"


def test_a_tensor_that_requires_a_gradient_is_refused():
    torch = pytest.importorskip("torch")
    double = mlirfuse.jit(lambda x: x * 2)
    with pytest.raises(UnsupportedError, match=r"records no gradients; pass tensor.detach\(\)"):
        double(torch.ones(3, requires_grad=True))
    assert double(torch.ones(3)).tolist() == [2, 2, 2]


def test_elements_of_large_arrays_are_taken_as_they_were():
    large, small, x = np.zeros(200_000), np.zeros(10), np.ones(3)
    of_large, of_small = mlirfuse.jit(lambda x: x + large[3]), mlirfuse.jit(lambda x: x + small[3])
    whole = mlirfuse.jit(lambda x: (large * x[0]).sum())
    assert of_large(x)[0] == of_small(x)[0] == 1 and whole(x) == 0
    large[3] = small[3] = 5
    assert of_large(x)[0] == 1 and of_small(x)[0] == 6 and whole(x) == 5


def test_an_int_that_is_read_from_an_array_is_64_bit():
    of_element, of_argument = (lambda x, n: int(x[0]) * n), (lambda x, n: x + n * n)
    x, most = np.array([1 << 40]), 1 << 40
    assert mlirfuse.jit(of_element)(x, 3) == 3 << 40
    assert mlirfuse.jit(of_element)(x, most) != of_element(x, most) == 1 << 80
    assert mlirfuse.jit(of_argument)(x * 0.0, most).tolist() == [2.0**80]


FACTORS = {"number": 2.0}
held, factor_of = types.SimpleNamespace(factor=2.0), operator.attrgetter("factor")


def imports(x):
    try:
        from of_later import FACTOR  # type: ignore[import-not-found]
    except ImportError:
        FACTOR = 2.0
    return x * FACTOR


def test_what_is_read_past_names_stays(monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    by_globals = mlirfuse.jit(lambda x: x * globals()["FACTOR"])
    by_getter, by_name = mlirfuse.jit(lambda x: x * factor_of(held)), mlirfuse.jit(lambda x: x * FACTORS["number"])
    x = np.ones(3)
    assert [f(x)[0] for f in (by_globals, by_getter, by_name)] == [2.0, 2.0, 2.0]
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    monkeypatch.setattr(held, "factor", 3.0)
    monkeypatch.setitem(FACTORS, "number", 3.0)
    assert [f(x)[0] for f in (by_globals, by_getter, by_name)] == [2.0, 2.0, 3.0]
    by_import = mlirfuse.jit(imports)
    assert by_import(x)[0] == 2.0
    monkeypatch.setitem(sys.modules, "of_later", types.SimpleNamespace(FACTOR=3.0))
    assert (imports(x)[0], by_import(x)[0]) == (3.0, 2.0)


def test_scikit_learn_falls_back():
    sklearn = pytest.importorskip("sklearn.preprocessing")
    scaler = sklearn.StandardScaler().fit(np.arange(12.0).reshape(4, 3))
    x = np.arange(6.0).reshape(2, 3)
    compiled = mlirfuse.jit(lambda x: scaler.transform(x))
    with pytest.warns(mlirfuse.FallbackWarning):
        found = compiled(x)
    assert np.array_equal(found, scaler.transform(x))


def test_numbers_that_an_integer_type_does_not_hold():
    def straight(a, x):
        a[0] = x[0]
        return a + 1

    def loop(a, x):
        for k in range(len(a)):
            a[k] = x[k]
        return a + 1

    x = np.array([np.nan, 1.0])
    with np.errstate(invalid="ignore"), pytest.raises(ValueError):
        straight(np.zeros(2, np.int64), x)
    assert mlirfuse.jit(straight)(np.zeros(2, np.int64), x)[1] == 1
    with pytest.raises(ValueError):
        mlirfuse.jit(loop)(np.zeros(2, np.int64), x)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"])
def test_casts_of_floats_that_an_integer_type_does_not_hold(dtype):
    cast = mlirfuse.jit(lambda x: x.astype(dtype))
    for value in (np.nan, np.inf, -np.inf, 1e30, -1e30, -3000000001.0):
        found = {n for length in (1, 3, 7, 64, 1000) for n in cast(np.full(length, value)).tolist()}
        with np.errstate(invalid="ignore"):
            single = np.float64(value).astype(dtype)
        assert len(found) == 1 and (found == {single} or dtype in ("u1", "u2"))


def test_a_cumulative_product_multiplies_runs():
    x = np.full(400, 1e20, np.float32)
    x[0] = 0
    found = mlirfuse.jit(lambda x: np.cumprod(x))(x)
    assert not np.cumprod(x).any() and found[0] == 0 and np.isnan(found[-1])


def test_bfloat16_promotes_as_float16():
    x = np.ones(3, ml_dtypes.bfloat16)
    assert mlirfuse.jit(lambda x: x * 2.0)(x).dtype == x.dtype
    assert mlirfuse.jit(lambda x, y: x + y)(x, np.ones(3, np.float16)).dtype == np.float32


def test_clip_of_complex_numbers_is_not_compiled():
    z, f = np.array([1 + 2j, 3j]), lambda z: np.clip(z, 0, 1)
    with pytest.raises((CompileError, UnsupportedError, TypeError)):
        mlirfuse.jit(f, fallback=False)(z)
    np.testing.assert_array_equal(mlirfuse.jit(lambda z: z * 2 + z.sum())(z), z * 2 + z.sum())


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_where_torchs_own_tracing_differs(torch):
    from torch.nn import functional as F

    row, target, of_32 = (
        torch.tensor([[0.1, -0.4, 0.3, 0.2]]),
        torch.tensor([[-1, 0, 0, 0]]),
        torch.tensor([0, 1], dtype=torch.int32),
    )
    permuted = torch.randn(3, 2, 4).transpose(0, 1)
    cases = [
        (lambda: F.multilabel_margin_loss(row, target), lambda x: x),
        (lambda: F.interpolate(permuted, scale_factor=2.0, mode="nearest"), lambda x: x.stride()),
        (lambda: permuted.clone().cumsum_(0).exp(), lambda x: x.stride()),
        (lambda: permuted.clone().scatter_(0, row[None].long() * 0, 2.0).exp(), lambda x: x.stride()),
        (lambda: F.one_hot(of_32, 3), lambda x: x),
        (lambda: F.multi_margin_loss(row.expand(2, 4), of_32), lambda x: x),
        (lambda: torch.ones(3, dtype=torch.int64).mul_(2.5), lambda x: x),
    ]
    agreed = 0
    for f, seen in cases:
        given = []
        for backend in ("mlirfuse", "aot_eager"):
            torch._dynamo.reset()
            given.append(seen(torch.compile(f, backend=backend)()))
        ours, tracings = given
        same = torch.allclose(ours, tracings, 1e-6) if isinstance(ours, torch.Tensor) else ours == tracings
        assert same, f"{ours}, with torch's tracing {tracings}"
        try:
            eagers = seen(f())
        except RuntimeError:
            continue
        agreed += eagers == ours
    assert agreed <= 1, "eager and torch's tracing no longer differ"  # torch 2.15 has mended multilabel_margin_loss


@pytest.mark.parametrize("f", [
    lambda x, i: x[i].sum(), lambda x, i: x.gather(0, i[None]), lambda x, i: x.clone().index_add_(0, i, x[:2]),
    lambda x, i: i // (i * 0), lambda x, i: x[i].zero_(),
])  # fmt: skip
def test_what_nothing_reads_raises_nothing(torch, f):
    x, i = torch.ones(3, 3), torch.tensor([0, 7])
    torch._dynamo.reset()
    with pytest.raises((IndexError, RuntimeError)):
        f(x, i)
    assert torch.compile(lambda x, i: (f(x, i), x + 1)[1], backend="mlirfuse")(x, i).sum() == 18


@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_sign_of_a_maximum_of_zeros(torch, count):
    torch._dynamo.reset()
    run = torch.compile(torch.maximum, backend="mlirfuse")
    zero, negative = torch.zeros(count), torch.full((count,), -0.0)
    assert torch.signbit(run(zero, negative)).all() and not torch.signbit(run(negative, zero)).any()


def test_a_mean_of_infinity_beside_a_variance(torch):
    torch._dynamo.reset()
    for f in (torch.var_mean, torch.std_mean):
        spread, mean = torch.compile(f, backend="mlirfuse")(torch.tensor([1, float("inf"), 2]))
        assert spread.isnan() and mean == float("inf")


def test_results_are_not_resized(torch):
    x = torch.arange(6.0)
    for found in (torch.compile(lambda x: x + 1, backend="mlirfuse")(x), mlirfuse.jit(lambda x: x + 1)(x)):
        with pytest.raises(RuntimeError, match="not resizable"):
            found.resize_(12)
        assert torch.equal(found.resize_(4), x[:4] + 1)


@pytest.mark.thorough
def test_a_graph_for_one_float_is_compiled_in_each_process(torch, tmp_path):
    """What was specialized to the value of a float has no guard in torch's cache, and is not kept there."""
    code = """
import torch
from mlirfuse.frontend.torch import backend
made = []
real = backend.lower_to_host
backend.lower_to_host = lambda *a, **k: (made.append(1), real(*a, **k))[1]
run = torch.compile(lambda x, n: torch.full((3,), n) * x + n, backend="mlirfuse")
for n in (0.5, 0.25, 2.0):
    assert torch.allclose(run(torch.ones(3), n), torch.full((3,), 2 * n))
print(len(made))
"""
    folders = {"MLIRFUSE_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "MLIRFUSE_CACHE": "1"}
    path = os.pathsep.join([str(ROOT), *sys.path])
    counts = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env={**os.environ, **folders, "PYTHONPATH": path})  # fmt: skip
        assert done.returncode == 0, done.stderr
        counts.append(int(done.stdout))
    assert counts[1] > 0, counts
