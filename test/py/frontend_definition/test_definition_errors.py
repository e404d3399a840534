"""Wrong definitions and calls: each is a RuntimeError with nvFuser's words, which scripts match on, and the user's
line."""

import dataclasses

import malformed_definitions
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
    "iota, bool": (lambda fd, o, x: o.iota(10, dtype=DataType.Bool), "iota: supports integers and floats"),
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


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_malformed_definitions(first):
    """Generated ones: each runs or raises an error for its user. `malformed_definitions.py` runs more by hand."""
    problems = [p for seed in range(first, first + 250) if (p := malformed_definitions.problem(seed))]
    assert not problems, "\n".join(problems)


def scalar(fd, dtype=DataType.Int):
    return fd.define_scalar(None, dtype)


BOUNDS = {
    "slice, start": (lambda o, x, n: o.slice(x, [n, 0], [2, 4]), {0: [0, 1], 2: [], 7: [], -1: None}),
    "slice, end": (lambda o, x, n: o.slice(x, [1, 0], [n, 4]), {0: [], 2: [1], 9: [1, 2], -1: None}),
    "slice, normalized start": (
        lambda o, x, n: o.slice(x, [n, 0], [3, 4], None, True),
        {0: [0, 1, 2], 3: [], 4: None, -1: None},
    ),
    "slice, normalized end": (
        lambda o, x, n: o.slice(x, [1, 0], [n, 4], None, True),
        {1: [], 3: [1, 2], 4: None, 0: None, -1: None},
    ),
    "select": (lambda o, x, n: o.broadcast(o.select(x, n, 0), [True, False]), {0: [0], -3: [0], 3: None, -4: None}),
    "index_select": (lambda o, x, n: o.index_select(x, o.full([1], n, DataType.Int), 0), {2: [2], 3: None, -4: None}),
    "gather": (lambda o, x, n: o.gather(x, o.full([1, 4], n, DataType.Int), 0), {2: [2], 3: None, 10**6: None}),
    "take_along_axis": (
        lambda o, x, n: o.take_along_axis(x, o.full([1, 4], n, DataType.Int), 0),
        {2: [2], 3: None, -4: None},
    ),
    "embedding_fwd": (lambda o, x, n: o.embedding_fwd(o.full([1], n, DataType.Int), x), {1: [1], 3: None}),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_bounds_that_a_call_gives(case):
    """Rows of ``x``, which lies amid others, or an error where they are not there: nothing beside it is read."""
    build, calls = BOUNDS[case]
    x = torch.arange(100.0).view(25, 4)[10:13]
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(build(fd.ops, fd.from_pytorch(x), scalar(fd))))
    for n, rows in calls.items():
        if rows is None:
            with pytest.raises(InputError):
                fd.execute([x, n])
        else:
            assert torch.equal(fd.execute([x, n])[0], -x[rows]), n


NEGATIVE = {
    "full": lambda o, x, n: o.full([n], 1.0),
    "iota": lambda o, x, n: o.iota(n),
    "expand": lambda o, x, n: o.expand(o.sum(x, [0], True), [n, 4]),
    "broadcast_in_dim": lambda o, x, n: o.broadcast_in_dim(x, [n, 3, 4], [1, 2]),
    "reshape": lambda o, x, n: o.reshape(x, [n, o.sub(0, 4)]),
    "uniform": lambda o, x, n: o.uniform(0.0, 1.0, [n]),
    "embedding_bwd": lambda o, x, n: o.embedding_bwd(x, o.iota(3), n),
    "computed": lambda o, x, n: o.full([o.sub(o.size(x, 0), 5)], n),
}


@pytest.mark.parametrize("case", NEGATIVE)
def test_negative_extents(case):
    x = torch.ones(3, 4)
    with FusionDefinition() as fd:
        try:
            fd.add_output(NEGATIVE[case](fd.ops, fd.from_pytorch(x), scalar(fd)))
        except DefinitionError:
            return  # known without a call
    with pytest.raises(InputError, match=r"must be|extent_int >= 0"):
        fd.execute([x, -3])


def test_finished_definitions_are_not_written_on():
    x = torch.ones(3)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.neg(t))
    for late in (lambda: fd.ops.neg(t), lambda: fd.add_output(t), lambda: fd.from_pytorch(x), lambda: t + t,
                 lambda: fd.define_scalar(1)):  # fmt: skip
        with pytest.raises(DefinitionError, match="Attempting to add to a completed definition"):
            late()
    assert torch.equal(fd.execute([x])[0], -x)
    with fd:  # written anew
        fd.add_output(fd.ops.abs(fd.from_pytorch(x)))
    assert torch.equal(fd.execute([x])[0], x)


@pytest.mark.parametrize("offsets", ([2, 9], [-2, 4], [1, 2], [3, 2]))
def test_groups_that_are_not_there(offsets):
    inputs = [torch.ones(4, 3), torch.ones(2, 3, 5), torch.tensor(offsets, dtype=torch.int32)]
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.grouped_mm(*map(fd.from_pytorch, inputs)))
    with pytest.raises(RuntimeError, match="offsets must not decrease, and end at the extent 4"):
        fd.execute(inputs)


def test_scatter_of_other_extents():
    """As torch: ``src`` may be larger than the index, not smaller."""
    x, index = torch.zeros(3, 4), torch.zeros(2, 4, dtype=torch.int64)
    for rows, fits in ((2, True), (3, True), (1, False)):
        src = torch.arange(4.0 * rows).view(rows, 4) + 1
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.scatter(*map(fd.from_pytorch, (x, index, src)), 0))
        if fits:
            assert torch.equal(fd.execute([x, index, src])[0], x.scatter(0, index, src))
        else:
            with pytest.raises(InputError, match="index must have at most src's extent in dimension 0"):
                fd.execute([x, index, src])
