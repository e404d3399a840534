"""Cross entropy of a linear layer in chunks of rows: values, gradients, what is never in memory, and who keeps logits
whole."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import mlirfuse.torch
from mlirfuse.frontend.torch.losses import chunked_loss, cross_entropy

WORDS, FEATURES = 301, 8


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(chunked_loss, "ROWS", 16)
    monkeypatch.setattr(chunked_loss, "MIN_WORDS", 128)
    monkeypatch.setattr(chunked_loss, "BLOCK_BYTES", 0)


def given(dtype=torch.float32, rows=(3, 20), features=FEATURES):
    """Hidden states, weight, bias, labels, some of them ignored. With 64 features the logits of 60 rows fit into the
    memory of the weight's gradient."""
    x = torch.randn(*rows, features, dtype=dtype, requires_grad=True)
    weight = torch.randn(WORDS, features, dtype=dtype, requires_grad=True)
    bias = torch.randn(WORDS, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, WORDS, rows)
    labels[0, :5] = -100
    return x, weight, bias, labels


def calls(fn, *args, option="always"):
    """The compiled ``fn``, and the ops of ours that its forward graphs call."""
    told = mlirfuse.torch.explain(fn, *args, options={"chunked_loss": option})
    names = [name for graph in told.graphs for name, _, _ in graph.outside]
    return [name.split(".")[1] for name in names if name.startswith("mlirfuse.linear")], str(told)


def gradients(fn, args):
    loss = fn(*args)
    inputs = [x for x in args if x is not None and x.requires_grad]
    return loss, torch.autograd.grad(loss, inputs)


def check(fn, args, op="linear_loss", tolerance=2e-6):
    """The compiled loss and gradients beside those in float64, whose error is at most ``tolerance`` of the largest."""
    torch._dynamo.reset()
    wide = [x.detach().double().requires_grad_() if x is not None and x.is_floating_point() else x for x in args]
    expected = gradients(fn, wide)
    run = torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "always", "fallback": False})
    found = gradients(run, args)
    for got, wanted in zip((found[0], *found[1]), (expected[0], *expected[1])):
        error = (got.double() - wanted).abs().max() / wanted.abs().max()
        assert error <= tolerance, float(error)
    torch._dynamo.reset()
    assert op in calls(fn, *args)[0]


def plain(x, weight, bias, labels, **how):
    return F.cross_entropy(F.linear(x, weight, bias).view(-1, WORDS), labels.view(-1), **how)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"reduction": "sum"},
        {"label_smoothing": 0.1},
        {"ignore_index": 3},
        {"label_smoothing": 0.2, "reduction": "sum", "ignore_index": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("features", [FEATURES, 64])
def test_values_and_gradients(how, features):
    x, weight, bias, labels = given(features=features)
    if how.get("ignore_index", -100) != -100:
        labels = labels.clamp(min=0)
    check(lambda *args: plain(*args, **how), (x, weight, bias, labels), tolerance=4e-6)


def as_older_models(x, weight, labels):
    logits = (F.linear(x, weight) * 0.7)[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels[..., 1:].reshape(-1))


def words_in_the_middle(x, weight, labels):
    return F.cross_entropy(F.linear(x, weight).transpose(1, 2), labels)


@pytest.mark.parametrize("fn", [as_older_models, words_in_the_middle])
def test_forms_of_models(fn):
    x, weight, _, labels = given()
    check(fn, (x, weight, labels))


def test_a_softcap():
    x, weight, _, labels = given(torch.float64)
    check(as_transformers, (x, weight, labels), tolerance=1e-13)


def as_transformers(x, weight, labels):
    logits = (F.linear(x, weight) / 5.0).tanh() * 5.0
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
    return F.cross_entropy(logits.view(-1, WORDS), shifted, ignore_index=-100, reduction="sum") / 7


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_that_are_more_than_a_factor_compute_logits_again(reduction):
    """A z-loss, and a loss of each row that something else weighs."""

    def fn(x, weight, labels):
        logits = F.linear(x, weight).view(-1, WORDS)
        loss = F.cross_entropy(logits, labels.view(-1), reduction=reduction, label_smoothing=0.1)
        z = torch.logsumexp(logits, -1).pow(2)
        weights = torch.linspace(0, 1, loss.numel()).to(loss.dtype).view_as(loss)
        return (loss * (weights if reduction == "none" else 1)).sum() + 0.01 * z.mean()

    x, weight, _, labels = given()
    check(fn, (x, weight, labels), "linear_rows")


def by_log_softmax(logits, labels):
    return logits.log_softmax(-1).gather(2, labels.unsqueeze(2)).squeeze(2)


def by_logsumexp(logits, labels):
    return torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(logits, dim=-1)


@pytest.mark.parametrize("probabilities", [by_log_softmax, by_logsumexp])
def test_log_probabilities_of_labels(probabilities):
    """As DPO reads them, of chosen and rejected answers: a sum per sequence, without padding."""

    def fn(x, weight, labels):
        logits = (F.linear(x, weight) / 0.7)[:, :-1].float()
        labels = labels[:, 1:].clone()
        mask = labels != -100
        labels[~mask] = 0
        each = (probabilities(logits, labels) * mask).sum(-1)
        return -F.logsigmoid(0.1 * (each[:2] - each[2:])).mean()

    x, weight, _, labels = given(rows=(4, 20))
    check(fn, (x, weight, labels), "linear_rows")


def by_kl_div(student, teacher, reduction):
    return F.kl_div(F.log_softmax(student, -1), F.softmax(teacher, dim=-1), reduction=reduction)


def by_log_targets(student, teacher, reduction):
    return F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction=reduction, log_target=True)


@pytest.mark.parametrize("reduction", ["batchmean", "sum", "mean"])
@pytest.mark.parametrize("divergence", [by_kl_div, by_log_targets])
def test_distillation(divergence, reduction):
    """From a wider teacher, at a temperature."""
    teacher_x, teacher_weight = torch.randn(3, 20, 12), torch.randn(WORDS, 12)

    def fn(x, weight, teacher_x, teacher_weight):
        student = F.linear(x, weight).float() / 2.0
        teacher = F.linear(teacher_x, teacher_weight).float() / 2.0
        return 4 * divergence(student, teacher, reduction)

    x, weight, _, _ = given()
    check(fn, (x, weight, teacher_x, teacher_weight), "linear_kl", 1e-5)


def test_distillation_keeps_logits_that_others_read():
    def fn(x, weight, teacher_weight, labels):
        student, teacher = F.linear(x, weight), F.linear(x, teacher_weight)
        return F.cross_entropy(student.view(-1, WORDS), labels.view(-1)) + by_kl_div(student, teacher, "sum")

    x, weight, _, labels = given()
    ops, text = calls(fn, x.detach(), weight, torch.randn(WORDS, FEATURES), labels)
    assert not ops
    assert "the full logits are stored: " in text and " also reads them" in text


@pytest.mark.parametrize("form", ["linear_loss", "linear_rows"])
def test_chunks_by_kernels_of_ours(monkeypatch, form):
    """As chunks of many elements are, here of few; twice, in a softcap."""
    monkeypatch.setattr(chunked_loss, "MIN_COMPILED", 0)
    seen = []
    compiled = chunked_loss._compiled
    monkeypatch.setattr(chunked_loss, "_compiled", lambda function: seen.append(function) or compiled(function))

    def fn(x, weight, labels):
        logits = (F.linear(x, weight).view(-1, WORDS) / 5.0).tanh() * 5.0
        loss = F.cross_entropy(logits, labels.view(-1), label_smoothing=0.1)
        return loss if form == "linear_loss" else loss + 0.01 * torch.logsumexp(logits, -1).pow(2).mean()

    x, weight, _, labels = given()
    check(fn, (x, weight, labels), form)
    assert {f.__name__ for f in seen} == {"_rows_of", "_overwrite_by_gradient"}


def test_no_row_counts():
    """As in eager: no number, with gradients of zero."""
    x, weight, _, labels = given()
    fn = torch.compile(lambda *args: plain(args[0], args[1], None, args[2]), backend="mlirfuse",
                       options={"chunked_loss": "always", "fallback": False})  # fmt: skip
    loss, grads = gradients(fn, (x, weight, torch.full_like(labels, -100)))
    assert loss.isnan()
    assert all(not g.any() for g in grads)


def test_a_label_that_is_no_word_is_refused():
    x, weight, _, labels = given()
    fn = torch.compile(lambda *args: plain(args[0], args[1], None, args[2]), backend="mlirfuse",
                       options={"chunked_loss": "always", "fallback": False})  # fmt: skip
    labels[1, 1] = WORDS
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        fn(x, weight, labels)


def test_autocast_and_tied_embeddings():
    """Gradients of the weight are summed in float32 from products of bfloat16: their error against float64 is no more
    than eager's."""
    table = torch.randn(WORDS, FEATURES, requires_grad=True)
    ids = torch.randint(0, WORDS, (3, 20))

    def fn(table, ids):
        hidden = torch.tanh(F.embedding(ids, table))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = F.linear(hidden, table)
        return F.cross_entropy(logits.float().view(-1, WORDS), ids.view(-1))

    def exact(table, ids):
        logits = F.linear(torch.tanh(F.embedding(ids, table)), table)
        return F.cross_entropy(logits.view(-1, WORDS), ids.view(-1))

    expected = torch.autograd.grad(exact(table.double(), ids), table)[0]
    eager = torch.autograd.grad(fn(table, ids), table)[0]
    run = torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "always", "fallback": False})
    got = torch.autograd.grad(run(table, ids), table)[0]
    assert got.dtype is torch.float32
    assert (got - expected).abs().max() <= 1.5 * (eager - expected).abs().max()
    assert "linear_loss" in calls(fn, table, ids)[0]


def test_symbolic_sizes():
    fn = torch.compile(lambda x, w, t: plain(x, w, None, t), backend="mlirfuse", dynamic=True,
                       options={"chunked_loss": "always", "fallback": False})  # fmt: skip
    for rows in ((3, 20), (2, 7), (5, 33)):
        x, weight, _, labels = given(rows=rows)
        found, expected = gradients(fn, (x, weight, labels)), gradients(lambda *a: plain(a[0], a[1], None, a[2]),
                                                                        (x, weight, labels))  # fmt: skip
        torch.testing.assert_close(found, expected)


def test_inference():
    x, weight, _, labels = given()
    with torch.no_grad():
        fn = torch.compile(lambda *a: plain(a[0], a[1], None, a[2]), backend="mlirfuse",
                           options={"chunked_loss": "always", "fallback": False})  # fmt: skip
        torch.testing.assert_close(fn(x, weight, labels), plain(x, weight, None, labels))


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made meanwhile."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (list, tuple)) else [out]:
            self.elements = max(self.elements, x.numel() if isinstance(x, torch.Tensor) else 0)
        return out


def peak_of(run) -> int:
    """The most bytes that are allocated at a time while ``run()`` does."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = run()
    del kept
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


@pytest.mark.parametrize("op", ["linear_loss", "linear_rows"])
def test_no_tensor_of_all_logits(op):
    x, weight, _, labels = (t.detach() for t in given(rows=(8, 32)))
    x, labels = x.view(-1, FEATURES), labels.clamp(min=0).view(-1)
    how = ("", torch.float32, [True, True, False])
    with Largest() as largest:
        if op == "linear_loss":
            chunked_loss.linear_loss._init_fn(x, weight, None, labels, torch.ones(256), 0.0, *how)
        else:
            rows = chunked_loss.linear_rows._init_fn(x, weight, None, labels, *how)
            chunked_loss.linear_rows_backward._init_fn(torch.ones_like(rows), rows, x, weight, None, labels, *how)
    assert largest.elements <= max(16 * WORDS, 256 * 128)


@pytest.mark.parametrize("rows", [128, 512])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_what_is_held_at_a_time(monkeypatch, rows, weights):
    """Beside the operands the gradients are in memory once, in the dtype of the weights, with the logits of a chunk of
    rows or within the weight's gradient, and one block of their gradient (op by op in float32: some times of it)."""
    monkeypatch.setattr(chunked_loss, "ROWS", 128)
    words, features = 1024, 64
    x = torch.randn(rows, features, dtype=torch.bfloat16)
    weight = torch.randn(words, features, dtype=weights)
    labels = torch.randint(0, words, (rows,))
    given = x, weight, None, labels, torch.ones(rows), 0.0, "", torch.bfloat16, [True, True, False]
    run = lambda: chunked_loss.linear_loss._init_fn(*given)  # noqa: E731
    run()
    plan = chunked_loss.Plan.of(rows, words, features, 2, weights.itemsize)
    assert plan.shared == (rows == 128 and weights is torch.float32)
    sizes = rows, words, features, 2, weights.itemsize
    gradients = (words * weights.itemsize + rows * 2) * features
    cast = words * features * 2 if weights is torch.float32 and rows > plan.rows else 0
    block = plan.rows * 128 * 4 * 4  # in float32 on a CPU
    products = 2 * 4 * features * (plan.rows + (words if weights is torch.bfloat16 else 128))
    assert peak_of(run) <= gradients + plan.bytes_of(*sizes) + cast + block + products


@pytest.mark.parametrize("op", ["linear_loss", "linear_rows", "linear_kl"])
def test_gradients_are_written_over_logits(monkeypatch, op):
    """Of a chunk, or of a block where the backward computes logits again, by a kernel without a copy."""
    monkeypatch.setattr(chunked_loss, "ROWS", 256)
    monkeypatch.setattr(chunked_loss, "MIN_COMPILED", 1)
    words, features, rows = 2048, 32, 512
    x, teacher = (torch.randn(rows, features) for _ in range(2))
    weight, labels = torch.randn(words, features), torch.randint(0, words, (rows,))
    needs, extra = [True, True, False], 4 * (words * features + 2 * rows * features + 16 * rows)
    if op == "linear_loss":
        run = lambda: chunked_loss.linear_loss._init_fn(  # noqa: E731
            x, weight, None, labels, torch.ones(rows), 0.0, "", torch.float32, needs
        )
        logits = 256 * words
    elif op == "linear_rows":
        rows_of = chunked_loss.linear_rows._init_fn(x, weight, None, labels, "", torch.float32, needs)
        run = lambda: chunked_loss.linear_rows_backward._init_fn(  # noqa: E731
            torch.ones_like(rows_of), rows_of, x, weight, None, labels, "", torch.float32, needs
        )
        logits = rows * 128
    else:
        both = x, weight, None, teacher, weight, None
        how = "|", torch.float32, torch.float32, needs
        lses = chunked_loss.linear_kl._init_fn(*both, *how)[1]
        run = lambda: chunked_loss.linear_kl_backward._init_fn(torch.ones(rows), lses, *both, *how)  # noqa: E731
        logits = 2 * rows * 128
    run()
    assert peak_of(run) <= extra + 4 * logits + 4 * 256 * 128 // 2


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_a_step_holds_the_gradient_once(weights):
    """Logits and their gradient are four times the weight's gradient, here."""
    words, features, rows = 4096, 64, 128 if weights is torch.float32 else 64
    x = torch.randn(rows, features, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(words, features, dtype=weights, requires_grad=True)
    labels = torch.randint(0, words, (rows,))

    def fn(x, weight, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = F.linear(x, weight)
        return F.cross_entropy(logits.float(), labels)

    run = torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "always", "fallback": False})
    step = lambda: torch.autograd.grad(run(x, weight, labels), (x, weight))  # noqa: E731
    step()
    assert peak_of(step) <= 1.5 * words * features * weights.itemsize


@pytest.mark.parametrize("rows, features", [(64, 32), (1024, 32), (256, 256)])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float16])
def test_accuracy_of_the_weight_gradient(rows, features, weights):
    """Against float64 with the same logits: the error is at most that of rounding the gradient of logits to bfloat16,
    summed over rows in magnitude, and of rounding the result once, however many chunks there are."""
    torch.manual_seed(1)
    compute = torch.bfloat16 if weights is torch.float32 else weights
    x = torch.randn(rows, features).to(compute)
    weight = (torch.randn(WORDS, features) / features**0.5).to(weights)
    labels = torch.randint(0, WORDS, (rows,))
    ones = torch.ones(rows) / rows
    got = chunked_loss.linear_loss._init_fn(x, weight, None, labels, ones, 0.0, "", compute, [True, True, False])[2]
    assert got.dtype is weights
    logits = F.linear(x, weight.to(compute)).double()
    d = (logits.softmax(1) - F.one_hot(labels, WORDS)) / rows
    exact, magnitudes = d.t() @ x.double(), d.t().abs() @ x.double().abs()
    unit = torch.finfo(compute).eps / 2
    bound = 1.1 * unit * magnitudes + 1.05 * torch.finfo(weights).eps / 2 * exact.abs()
    tiny = torch.finfo(torch.float16).tiny if torch.float16 in (compute, weights) else 0
    assert ((got.double() - exact).abs() <= bound + tiny).all()


def test_no_chunk_is_rounded_before_the_sum():
    """257 is no bfloat16; 257 + 1 is."""
    x, weight = torch.ones(2, 4).bfloat16(), torch.zeros(8, 4).bfloat16()
    sums = chunked_loss._Sums(x, weight, None, [False, True, False], several=True)
    weights = chunked_loss._Weights(weight, None, torch.bfloat16, True)
    sums.add(0, (0, 8), torch.tensor([[256.0], [1.0]]).expand(2, 8).bfloat16(), x, weights)
    sums.add(2, (0, 8), torch.tensor([[1.0], [0.0]]).expand(2, 8).bfloat16(), x, weights)
    assert (sums.results()[1] == 258).all()


def test_words_that_cannot_be():
    """A bias of -inf hides words; their logits are no number times zero."""
    x, weight, bias, labels = given()
    labels = labels.clamp(0, 99)
    with torch.no_grad():
        bias[100:] = -torch.inf
    check(plain, (x, weight, bias.detach(), labels))


def test_the_graph_holds_no_logits():
    x, weight, _, labels = given(rows=(8, 32))
    told = mlirfuse.torch.explain(lambda *a: plain(a[0], a[1], None, a[2]), x, weight, labels,
                                  options={"chunked_loss": "always"})  # fmt: skip
    values = {v for graph in told.graphs for op in graph.host.graph.ops for v in op.results}
    held = [v.shape for v in values if v.dtype is not None]
    assert held
    assert not any(shape[-1:] == (WORDS,) and len(shape) > 1 for shape in held)


def test_operands_written_in_between_keep_logits_whole():
    def fn(x, weight, labels):
        x = x * 1
        logits = F.linear(x, weight).view(-1, WORDS)
        x.add_(1)
        return F.cross_entropy(logits, labels.view(-1)) + x.sum()

    x, weight, _, labels = given()
    ops, text = calls(fn, x.detach(), weight.detach(), labels)
    assert not ops
    assert "add_ changes in place what they are computed from" in text


READERS = {
    "returned": (lambda logits, loss: (loss, logits), "the graph returns them"),
    "accuracy": (lambda logits, loss: loss + 0 * logits.argmax(-1).sum(), "argmax also reads them"),
    "distillation": (lambda logits, loss: loss + logits.softmax(-1).pow(2).sum(), "softmax also reads them"),
}


@pytest.mark.parametrize("reader, who", READERS.values(), ids=READERS)
def test_other_readers_keep_logits_whole(reader, who):
    def fn(x, weight, labels):
        logits = F.linear(x, weight)
        return reader(logits, F.cross_entropy(logits.view(-1, WORDS), labels.view(-1)))

    x, weight, _, labels = given()
    ops, text = calls(fn, x, weight, labels)
    assert not ops
    assert f"the full logits are stored: {who}" in text


def test_the_option():
    x, weight, _, labels = given()
    fn = lambda x, w, t: plain(x, w, None, t)  # noqa: E731
    assert not calls(fn, x, weight, labels, option="never")[0]
    ops, text = calls(fn, x, weight, labels, option="auto")
    assert not ops
    assert "chunked_loss='always' forces chunks" in text
    with pytest.raises(Exception, match="'auto', 'always', 'never'"):
        torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "often"})(x, weight, labels)


def test_automatic_where_it_saves_much(monkeypatch):
    monkeypatch.setattr(cross_entropy, "LEAST_SAVED", 1000)
    x, weight, _, labels = given(rows=(8, 32))
    assert calls(lambda x, w, t: plain(x, w, None, t), x, weight, labels, option="auto")[0] == ["linear_loss"]


@pytest.mark.parametrize("step", [lambda y: y + 1, torch.relu, lambda y: y.detach(), lambda y: y.half().float()])
def test_what_is_done_otherwise_keeps_logits(step):
    x, weight, _, labels = given()
    fn = lambda x, w, t: F.cross_entropy(step(F.linear(x, w).view(-1, WORDS)), t.view(-1)) + x.sum()  # noqa: E731
    assert not calls(fn, x, weight, labels)[0]


class Tied(torch.nn.Module):
    """A loss of words whose embeddings are the head's weight."""

    def __init__(self):
        super().__init__()
        self.words, self.hidden = torch.nn.Embedding(WORDS, FEATURES), torch.nn.Linear(FEATURES, FEATURES)
        self.head = torch.nn.Linear(FEATURES, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        logits = self.head(torch.tanh(self.hidden(self.words(ids))))
        return F.cross_entropy(logits.view(-1, WORDS), ids.view(-1))


def rank_of_two(rank: int, folder: str, ways: tuple[str, ...]):
    """Trains a step in each of torch's ways of spreading a model; raises where gradients are not those of one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", f"file://{folder}/ranks", rank=rank, world_size=2)
    checked, seen = chunked_loss._checked, []
    chunked_loss._checked = lambda target, words: seen.append(len(target)) or checked(target, words)
    torch.manual_seed(0)
    ids, whole = torch.randint(0, WORDS, (2, 4, 10)), Tied()
    ((whole(ids[0]) + whole(ids[1])) / 2).backward()
    for way in ways:
        model = Tied()
        model.load_state_dict(whole.state_dict())
        if way == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        options = {"chunked_loss": "always", "fallback": False}
        torch.compile(model, backend="mlirfuse", options=options)(ids[rank]).backward()
        for expected, found in zip(whole.parameters(), model.parameters()):
            grad = found.grad.full_tensor() if way == "fsdp2" else found.grad
            torch.testing.assert_close(grad, expected.grad)
        assert seen.pop() == 40
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_ddp_and_fsdp2_with_tied_embeddings(tmp_path):
    torch.multiprocessing.spawn(rank_of_two, (str(tmp_path), ("ddp", "fsdp2")), 2)


def without(read):
    with torch.no_grad():
        return read()


@pytest.mark.parametrize(
    "read",
    [
        lambda logits, t: (without(lambda: logits.logsumexp(-1)), F.cross_entropy(logits, t)),
        lambda logits, t: (F.cross_entropy(logits, t), without(lambda: logits.logsumexp(-1))),
        lambda logits, t: (without(lambda: F.cross_entropy(logits, t)), logits.logsumexp(-1)),
    ],
)
def test_readers_in_different_grad_modes(read):
    def fn(x, weight, labels):
        return read(F.linear(x, weight), labels)

    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    labels = torch.randint(0, 9, (6,))
    torch._dynamo.reset()
    run = torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "always", "fallback": False})
    wanted, found = fn(x, weight, labels), run(x, weight, labels)
    assert [y.requires_grad for y in found] == [y.requires_grad for y in wanted]
    grads = [torch.autograd.grad(sum(y.sum() for y in ys if y.requires_grad), x)[0] for ys in (wanted, found)]
    torch.testing.assert_close(grads[1], grads[0])


def test_scaled_float16_losses_keep_small_gradients():
    rows, words, scale = 64, 4096, 2.0**16  # p / rows is about 4e-6, some 64 of the smallest steps
    x = torch.randn(rows, 8, requires_grad=True)
    weight = (torch.randn(words, 8) / 100).requires_grad_()
    labels = torch.randint(0, words, (rows,))

    def fn(x, weight):
        with torch.autocast("cpu", torch.float16):
            return F.cross_entropy(F.linear(x, weight), labels)

    torch._dynamo.reset()
    run = torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "always", "fallback": False})
    wanted = torch.autograd.grad(F.cross_entropy(F.linear(x.double(), weight.double()), labels), weight)[0]
    found = torch.autograd.grad(run(x, weight) * scale, weight)[0] / scale
    rare = torch.ones(words, dtype=torch.bool).index_fill(0, labels, False)
    error = (found[rare].double() - wanted[rare]).norm() / wanted[rare].norm()
    assert error <= 2**-9, float(error)  # some roundings of float16, 2⁻¹¹ each


@pytest.mark.parametrize("view", [lambda y: y.view(size=(-1, 9)), lambda y: y.view(torch.float32), torch.Tensor.double])
def test_views_by_keyword_and_wider_casts(view):
    def fn(x, weight, labels):
        return F.cross_entropy(view(F.linear(x, weight)), labels)

    args = torch.randn(6, 4), torch.randn(9, 4), torch.randint(0, 9, (6,))
    torch._dynamo.reset()
    run = torch.compile(fn, backend="mlirfuse", options={"chunked_loss": "always", "fallback": False})
    wanted = fn(*args)
    torch.testing.assert_close(run(*args), wanted, rtol=1e-12 if wanted.dtype is torch.float64 else 1e-6, atol=0)
