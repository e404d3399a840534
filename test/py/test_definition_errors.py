"""Wrong definitions and calls: each is a RuntimeError with nvFuser's words, which scripts match on, and the user's
line."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from mlirfuse.frontend.nvfuser import program
from mlirfuse.nvfuser import DataType, DefinitionError, FusionDefinition, InputError

INF = float("inf")


def tensor(fd, *shape, dtype=DataType.Float):
    return fd.define_tensor(shape=[-1] * len(shape), contiguity=[True] * len(shape), dtype=dtype)


OPERATIONS = {
    "cat, dimension": (lambda fd, o, x: o.cat([x, x], 2), "Invalid dimension to cat"),
    "cat, negative dimension": (lambda fd, o, x: o.cat([x, x], -3), "Invalid dimension to cat"),
    "cat of none": (lambda fd, o, x: o.cat([], 0), "Attempting to concatenate empty list of tensors"),
    "cat of ranks": (lambda fd, o, x: o.cat([x, o.sum(x, [0])], 0), "Unexpected number of dimensions"),
    "full": (lambda fd, o, x: o.full([2, -2], 1.0), "extent_int >= 0"),
    "full, -1": (lambda fd, o, x: o.full([2, -1], 1.0), "extent_int >= 0"),
    "index_select": (lambda fd, o, x: o.index_select(x, o.iota(3), 2), "index_select on invalid axis"),
    "take_along_axis": (
        lambda fd, o, x: o.take_along_axis(x, o.cast(x, DataType.Int), -3),
        "Tensor arguments have dimension",
    ),
    "iota, length": (lambda fd, o, x: o.iota(fd.define_scalar(2 + 1j)), "length must be integer"),
    "iota, float length": (lambda fd, o, x: o.iota(2.5), "length must be integer"),
    "iota, negative length": (lambda fd, o, x: o.iota(-1), "length must be non-negative"),
    "iota, start": (lambda fd, o, x: o.iota(3, 1j, 1), "iota: start dtype does not match specified dtype argument"),
    "iota, step": (lambda fd, o, x: o.iota(3, 1, 1j), "iota: step dtype does not match specified dtype argument"),
    "iota, infinite": (
        lambda fd, o, x: o.iota(3, INF, 1.0, DataType.Float),
        "iota: length, start, step must be finite numbers",
    ),
    "iota, step 0": (lambda fd, o, x: o.iota(10, 1, 0), "iota: step value must not equal zero"),
    "iota, bool": (lambda fd, o, x: o.iota(10, dtype=DataType.Bool), "iota: it makes integers and floats"),
    "pad, value": (
        lambda fd, o, x: o.pad(x, [1, 1], fd.define_scalar(1)),
        "Tensor arg and pad value must have the same dtype",
    ),
    "pad, complex": (lambda fd, o, x: o.pad(x, [1, 1], 1j), "Tensor arg and pad value must have the same dtype"),
    "pad, too many": (
        lambda fd, o, x: o.pad(x, [1] * 6),
        "Number of pad widths must be at most twice the input dimension",
    ),
    "pad, odd": (lambda fd, o, x: o.pad(x, [1, 1, 0]), "Invalid number of padding widths"),
    "pad, all": (lambda fd, o, x: o.pad(o.full([2, 2], 1.0), [-3, 0, 0, 0]), "extent_int >= 0"),
    "permute, floats": (lambda fd, o, x: o.permute(x, [0.0, 1.0]), "permute.*incompatible function arguments"),
    "permute, twice": (lambda fd, o, x: o.permute(x, [0, 0]), "duplicated dimension entries"),
    "permute, range": (lambda fd, o, x: o.permute(x, [0, 2]), "dims argument is out of range, expects"),
    "permute, length": (lambda fd, o, x: o.permute(x, [0]), "argument to have the same length as input"),
    "uniform": (
        lambda fd, o, x: o.uniform(0.0, 1.0, [2], DataType.Int),
        "Random distributions only create floating point types",
    ),
    "var_mean, float": (lambda fd, o, x: o.var_mean(x, 2.0), "var_mean.*incompatible function arguments"),
    "sum, twice": (lambda fd, o, x: o.sum(x, [0, 0]), "Reduction axes are not unique"),
    "sum, range": (lambda fd, o, x: o.sum(x, [-3]), "Reduction on invalid axis"),
    "reshape, -1": (lambda fd, o, x: o.reshape(x, [3, -1, -1]), "A maximum of one value of -1"),
    "reshape, counts": (
        lambda fd, o, x: o.reshape(o.full([3, 14], 1.0), [3, 2, 8]),
        "Total element counts across view operation must match",
    ),
    "slice, start": (lambda fd, o, x: o.slice(x, [-1, 0], [5, 5]), "start_indices must be greater.than.or.equal.to 0"),
    "slice, end": (
        lambda fd, o, x: o.slice(x, [3, 4], [1, 2]),
        "end_indices must be greater.than.or.equal.to start_indices",
    ),
    "slice, step": (lambda fd, o, x: o.slice(x, [0, 0], [5, 5], [0, 1]), "strides must be"),
    "slice, rank": (
        lambda fd, o, x: o.slice(x, [0] * 3, [4] * 3, [1] * 3),
        "Number of tensor dimensions does not match slice dimensions!",
    ),
    "slice, starts": (
        lambda fd, o, x: o.slice(x, [0] * 3, [4, 4, 4], [1, 1]),
        "Slice start_indices and strides don't match!",
    ),
    "slice, ends": (
        lambda fd, o, x: o.slice(x, [0, 0], [4] * 3, [1, 1]),
        "Slice indexing attribute dimensions don't match!",
    ),
    "where": (lambda fd, o, x: o.where(x, x, x), "Condition should be of DataType Bool"),
    "size": (
        lambda fd, o, x: o.size(x, 2),
        "The dimension requested is beyond the bounds of the shape of the indexed tensor!",
    ),
    "at": (lambda fd, o, x: o.at(o.shape(x), -3), "The index requested is beyond the bounds of the indexed vector!"),
}


@pytest.mark.parametrize("case", OPERATIONS)
def test_operations(case):
    call, words = OPERATIONS[case]
    with FusionDefinition() as fd:
        with pytest.raises(RuntimeError, match=words) as raised:
            call(fd, fd.ops, tensor(fd, 2, 2))
        assert isinstance(raised.value, DefinitionError) and "test_definition_errors.py:" in str(raised.value)
        assert isinstance(raised.value, TypeError) or "incompatible function arguments" not in words


DECLARATIONS = {
    "size": (
        {"shape": [-2], "contiguity": [True]},
        "The value -2 at index 0 was neither symbolic.-1., zero_element.0., broadcast.1., or static.>1.",
    ),
    "contiguity": (
        {"shape": [-1, -1], "contiguity": [True] * 3},
        "The size of contiguity must equal to the number of non-broadcasting IterDomains",
    ),
    "contiguity, newer": (
        {"shape": [-1, -1], "contiguity": [True] * 3},
        r"Length of contiguity argument \(3\) must match that of shape argument \(2\)",
    ),
    "beyond 64 bits": ({"shape": [2**63], "contiguity": [True]}, r"define_tensor\(\): incompatible function arguments"),
    "float": ({"shape": [10.0], "contiguity": [True]}, r"define_tensor\(\): incompatible function arguments"),
    "stride order, twice": (
        {"shape": [-1] * 3, "contiguity": [True] * 3, "stride_order": [0, 1, 1]},
        "duplicated stride_order entries",
    ),
    "stride order, range": (
        {"shape": [-1] * 3, "contiguity": [True] * 3, "stride_order": [0, 1, 5]},
        "stride_order argument is out of range",
    ),
    "stride order, negative": (
        {"shape": [-1] * 3, "contiguity": [True] * 3, "stride_order": [0, 1, -4]},
        "stride_order argument is out of range",
    ),
}


@pytest.mark.parametrize("case", DECLARATIONS)
def test_declarations(case):
    arguments, words = DECLARATIONS[case]
    with FusionDefinition() as fd, pytest.raises(RuntimeError, match=f"test_definition_errors.py.*{words}") as raised:
        fd.define_tensor(**arguments)
    assert isinstance(raised.value, TypeError) == ("incompatible" in words)


CALLS = {
    "cat": (lambda o, x, y: o.cat([x, y], 0), [(2, 3), (4, 5)], "known_size == this_size"),
    "reshape": (
        lambda o, x: o.reshape(x, [3, 2, 8]),
        [(3, 14)],
        "Total element counts across view operation must match",
    ),
    "pad": (lambda o, x: o.pad(x, [-3, 0, 0, 0]), [(2, 2)], "extent_int >= 0"),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls(case):
    """What shows with the sizes of a call."""
    body, shapes, words = CALLS[case]
    with FusionDefinition() as fd:
        fd.add_output(body(fd.ops, *(tensor(fd, *s) for s in shapes)))
    with pytest.raises(InputError, match=f"test_definition_errors.py.*{words}"):
        fd.execute([torch.ones(s) for s in shapes])


def test_pads_that_take_away():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.pad(tensor(fd, 2, 2), [1, -1, -1, 2], 7))
    x = torch.randn(3, 4)
    assert torch.equal(fd.execute([x])[0], torch.nn.functional.pad(x, [1, -1, -1, 2], value=7.0))


def test_outputs_of_cpu_scalars_alone(monkeypatch):
    """With all on the CPU they are computed; beside tensors on a GPU they are an error. Here the CPU is said to be
    one."""
    x, s = torch.randn(3), torch.tensor(2.0)

    def define():
        with FusionDefinition() as fd:
            a, b = fd.from_pytorch(x), fd.from_pytorch(s)
            fd.add_output(fd.ops.mul(a, b))
            fd.add_output(fd.ops.add(b, b))
        return fd

    scaled, twice = define().execute([x, s])
    assert torch.equal(scaled, 2 * x) and twice.item() == 4.0
    program.reset_programs()
    true = program.describe
    on_gpu = lambda value: dataclasses.replace(true(value), device="cuda:0") if value.ndim else true(value)  # noqa: E731
    monkeypatch.setattr(program, "describe", on_gpu)
    with pytest.raises(InputError, match=r"test_definition_errors.py:\d+: KernelExecutor does not support the Fusion"):
        define().execute([x, s])
