"""Attention keeps eager's kernel: what masks hide is seen to where the graph tells it, others stay."""

import operator
import random

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F

import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.attention import selection
from mlirfuse.frontend.torch.fx.nodes import WHY
from mlirfuse.frontend.torch.lower import _has_effects
from mlirfuse.ir.effects import has_effect


def masks_of(fn, *args, seen=None):
    """The masks of the attentions in the graph of ``fn``, after `selection.simplify_masks`: each node, or None."""
    found = []

    def backend(module, inputs):
        selection.simplify_masks(module)
        calls = [node for node in module.graph.nodes if node.target is F.scaled_dot_product_attention]
        found.extend(n.kwargs.get("attn_mask", n.args[3] if len(n.args) > 3 else None) for n in calls)
        if seen is not None:
            seen.extend(n.kwargs["is_causal"] for n in calls)
        return module.forward

    torch._dynamo.reset()
    got = torch.compile(fn, backend=backend)(*args)
    torch.testing.assert_close(got, fn(*args))
    return found


def qkv():
    torch.manual_seed(0)
    return torch.randn(3, 2, 4, 16, 8).unbind(0)


def made_inside(q, k, v, first):
    """A mask as encoders make theirs while they are traced: positions from ``first`` on, for every row."""
    positions = torch.arange(16) + 0
    mask = (positions >= first)[None, None, :, None].expand(2, 1, 16, 16)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_a_mask_that_hides_nothing_goes():
    assert masks_of(lambda q, k, v: made_inside(q, k, v, 0), *qkv()) == [None]


def causal(q, k, v):
    """A mask as decoders make theirs."""
    positions = torch.arange(16) + 0
    mask = (positions[None, None, None, :] <= positions[None, None, :, None]).expand(2, -1, 16, 16)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False)


def test_a_mask_of_what_comes_later_is_said_so():
    seen = []
    assert masks_of(causal, *qkv(), seen=seen) == [None]
    assert seen == [True]


def test_methods_that_pythons_objects_have_too():
    """The namespace of ATen's ops has Python's own ``__eq__`` and ``__ne__``, which are no ops."""

    def attend(q, ids):
        shown = (ids[:, None] == ids[None, :]).__ne__(False) & torch.ones(8, 8, dtype=torch.bool).tril().__eq__(True)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=shown)

    q, ids = torch.randn(1, 2, 8, 16), torch.zeros(8, dtype=torch.int64)
    compiled = torch.compile(attend, backend="mlirfuse", options={"fallback": False})
    torch.testing.assert_close(compiled(q, ids), attend(q, ids))


def test_a_mask_that_hides_something_else_stays():
    def fn(q, k, v):
        mask = (torch.arange(16) % 3 > 0)[None, :].expand(16, 16)
        return F.scaled_dot_product_attention(q, k, v, mask)

    assert masks_of(fn, *qkv()) != [None]


def test_a_mask_that_is_an_argument_stays():
    q, k, v = qkv()
    mask = torch.ones(16, 16, dtype=torch.bool)
    assert masks_of(lambda m: F.scaled_dot_product_attention(q, k, v, m), mask) != [None]


def test_a_mask_of_random_numbers_stays():
    def fn(q, k, v):
        torch.manual_seed(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.rand(16, 16) >= 0)

    assert None not in masks_of(fn, *qkv())


def said(fn, *args, dynamic=None):
    """What the graph of ``fn`` says of its attention, after `selection.simplify_masks`: whether a mask is left, `is_causal`,
    and why. The graph's results are eager's."""
    found = []

    def backend(module, inputs):
        selection.simplify_masks(module)
        for m in module.modules():
            for node in m.graph.nodes if isinstance(m, torch.fx.GraphModule) else ():
                if node.target is F.scaled_dot_product_attention:
                    mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
                    why = node.meta.get("custom", {}).get(WHY, "")
                    found.append((mask is not None, bool(node.kwargs.get("is_causal")), why))
        return module.forward

    torch._dynamo.reset()
    got = torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    torch.testing.assert_close(got, fn(*args))
    (one,) = found
    return one


def positions(n, device=None):
    return torch.arange(n, device=device) + 0


def by_indices(shown):
    """Attention whose mask is a function of indices, as transformers makes them: ands of comparisons."""

    def fn(q, k, v, *given):
        batch = torch.arange(q.shape[0])[:, None, None, None]
        query, key = positions(q.shape[2])[None, None, :, None], positions(k.shape[2])[None, None, None, :]
        mask = shown(batch, query, key, *given).expand(q.shape[0], -1, q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return fn


CAUSAL = {
    "and": lambda b, q, k: q.new_ones((), dtype=torch.bool) & (k <= q).to(q.device),
    "method": lambda b, q, k: (k <= q).__and__(torch.ones((), dtype=torch.bool)),
    "not": lambda b, q, k: ~(k > q),
    "one window too wide": lambda b, q, k: (k <= q) & (k > q - 16),
    "or nothing": lambda b, q, k: (q >= k) | (k < 0),
    "tril": lambda b, q, k: torch.ones(16, 16, dtype=torch.bool).tril()[q, k],
    "cumsum of nothing": lambda b, q, k: (k <= q) & ((q != q).cumsum(-1) == (k != k).cumsum(-1)),
    "floats": lambda b, q, k: torch.full((16, 16), float("-inf")).triu(diagonal=1)[None, None],
    "masked_fill": lambda b, q, k: torch.zeros(1, 1, 16, 16).masked_fill(k > q, torch.finfo(torch.float32).min),
    "inverted": lambda b, q, k: (1.0 - (k <= q).to(torch.float32)) * torch.finfo(torch.float32).min,
    "where": lambda b, q, k: torch.where(k <= q, 0.0, float("-inf")),
}


@pytest.mark.parametrize("shown", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_causal_is_said_so_however_it_was_made(shown, dynamic):
    sizes_known = any(shown is CAUSAL[name] for name in ("tril", "floats", "masked_fill", "one window too wide"))
    if dynamic and sizes_known:
        pytest.skip("its sizes are numbers")
    mask, causal, why = said(by_indices(shown), *qkv(), dynamic=dynamic)
    assert (mask, causal) == (False, True), why


STAYS = {
    "shifted": (lambda b, q, k: k <= q + 1, "keys up to query + 1"),
    "strict": (lambda b, q, k: (k < q) | (k == 0), "a choice of masks"),
    "window": (lambda b, q, k: (k <= q) & (k > q - 4), "causal and a window of 4"),
    "prefix": (lambda b, q, k: (k <= q) | (k < 5), "a choice of masks"),
    "chunks": (lambda b, q, k: (k <= q) & (k // 4 == q // 4), "causal and a pattern of indices"),
    "biases": (lambda b, q, k: torch.where(k <= q, 0.0, -1.0), "added values"),
    "rows that see nothing": (lambda b, q, k: torch.where(k < q, 0.0, -1e38), "added values"),
}


@pytest.mark.parametrize("shown, how", STAYS.values(), ids=STAYS)
def test_what_is_something_else_stays_and_says_what_it_is(shown, how):
    mask, causal, why = said(by_indices(shown), *qkv())
    assert (mask, causal) == (True, False)
    assert how in why


def test_padding_and_documents_that_values_tell_stay():
    q, k, v = qkv()
    kept = torch.ones(2, 16, dtype=torch.long)
    kept[0, 12:] = 0
    documents = torch.tensor([[0] * 7 + [1] * 9, [0] * 16])

    def padded(b, i, j, kept):
        return (j <= i) & kept.to(torch.bool)[b, j]

    def packed(b, i, j, documents):
        return (j <= i) & (documents[b, i] == documents[b, j])

    mask, _, why = said(by_indices(padded), q, k, v, kept)
    assert mask and "causal and padding given by values" in why and "runs on a GPU" in why
    mask, _, why = said(by_indices(packed), q, k, v, documents)
    assert mask and "causal and documents given by values" in why


def test_documents_of_positions_that_the_graph_counts_are_one():
    """As transformers looks for packed sequences in positions that it made itself."""

    def shown(batch, query, key):
        given = (torch.arange(16) + 0)[None].expand(2, -1)
        steps = torch.diff(given, prepend=given[:, :1] - 1, dim=-1)
        documents = (steps != 1).cumsum(-1)
        return (key <= query) & (documents[batch, query] == documents[batch, key])

    assert said(by_indices(shown), *qkv())[:2] == (False, True)


def test_masks_of_vmapped_functions():
    def fn(q, k, v):
        every = torch.vmap(torch.vmap(lambda i, j: (j <= i) & (j >= 0), (None, 0)), (0, None))
        mask = every(torch.arange(16), torch.arange(16))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    assert said(fn, *qkv())[:2] == (False, True)


def test_a_mask_that_is_written_stays():
    def fn(q, k, v):
        mask = torch.arange(16)[None, :] <= torch.arange(16)[:, None]
        mask = mask & True
        mask[3, 9] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    mask, causal, why = said(fn, *qkv())
    assert (mask, causal) == (True, False)
    assert "written in place" in why


def test_a_view_of_what_is_written_stays():
    def fn(q, k, v):
        mask = torch.arange(16)[None, :] <= torch.arange(16)[:, None]
        seen = mask[None, None]
        mask.logical_not_()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    q, k, v = qkv()
    assert said(fn, q, k, v)[:2] == (True, False)


def test_positions_that_are_shifted_in_place():
    """As transformers 4 does: ``+=`` gives a new name, and the old one is not read again."""

    def causal(q, k, v):
        keys = torch.arange(16)
        keys += 2
        keys = keys.sub_(2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keys <= torch.arange(16)[:, None])

    assert said(causal, *qkv())[:2] == (False, True)


def test_an_old_name_that_is_read_again():
    def fn(q, k, v):
        keys = torch.arange(16)
        old = keys.view(1, 16)
        keys += 2
        return F.scaled_dot_product_attention(q, k, v, attn_mask=old <= torch.arange(16)[:, None])

    mask, _, why = said(fn, *qkv())
    assert mask and "written in place" in why


def test_writes_into_an_input_stay_where_the_mask_goes():
    def fn(q, k, v, keys):
        keys += torch.arange(16)
        keys -= keys
        return F.scaled_dot_product_attention(q, k, v, attn_mask=((keys * 0 <= 0) | (keys < 5))[None].expand(16, -1))

    keys = torch.full((16,), 7)
    q, k, v = qkv()
    found = torch.compile(fn, backend="mlirfuse", options={"fallback": False})(q, k, v, keys)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v))
    assert not keys.any()


def test_aten_ops_under_vmap():
    """As transformers 4 reads padding and documents."""

    def fn(q, k, v, documents):
        def shown(b, i, j):
            aten = torch.ops.aten.index
            return (j <= i) & (aten(documents, [b, i]) == aten(documents, [b, j]))

        over = torch.vmap(torch.vmap(torch.vmap(shown, (None, None, 0)), (None, 0, None)), (0, None, None))
        mask = over(torch.arange(2), torch.arange(16), torch.arange(16))[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    q, k, v = qkv()
    assert "causal and documents given by values" in said(fn, q, k, v, (torch.arange(16) // 5).expand(2, -1))[2]


def test_fewer_queries_than_keys():
    q, k, v = qkv()
    last = q[:, :, -1:]
    assert said(by_indices(lambda b, i, j: j <= i + 15), last, k, v)[:2] == (False, False)  # sees everything
    few = q[:, :, -4:]
    mask, _, why = said(by_indices(lambda b, i, j: j <= i + 12), few, k, v)
    assert mask and "keys up to query + 12" in why
    assert said(by_indices(lambda b, i, j: j <= i), few, k, v)[:2] == (False, True)  # as is_causal says


def test_checkpoints_too():
    def fn(q, k, v):
        mask = (torch.arange(16)[None, :] <= torch.arange(16)[:, None]) & True
        inner = lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # noqa: E731
        return torch.utils.checkpoint.checkpoint(inner, q, k, v, mask, use_reentrant=False)

    assert said(fn, *(x.requires_grad_() for x in qkv()))[:2] == (False, True)


def random_mask(choice, depth=3):
    """A boolean function of the indices of queries and keys."""
    if depth == 0 or choice.random() < 0.2:
        compare = choice.choice([operator.le, operator.lt, operator.ge, operator.gt, torch.ge, torch.lt])
        which, a, b = choice.randrange(4), choice.randint(-3, 3), choice.randint(-9, 9)
        return lambda q, k: compare((q, k, q, k)[which] + a, (k, q, q * 0, k * 0)[which] - b)
    kind = choice.randrange(6)
    left, right = random_mask(choice, depth - 1), random_mask(choice, depth - 1)
    return [
        lambda q, k: ~left(q, k),
        lambda q, k: (left(q, k).to(torch.float32) * -2.0 + 2.0) == 0,
        lambda q, k: torch.where(left(q, k), right(q, k), q.new_ones((), dtype=torch.bool)),
        lambda q, k: left(q, k) | right(q, k),
        lambda q, k: left(q, k) & right(q, k),
        lambda q, k: left(q, k) & right(q, k),
    ][kind]


def test_forms_are_what_the_values_are():
    """Of 50 random masks: whatever a form says in full is what the mask shows."""
    queries, keys, told, choice = 7, 9, 0, random.Random(5)
    created = [random_mask(choice) for _ in range(50)]

    def fn(x):
        q, k = torch.arange(queries)[:, None] + 0, torch.arange(keys)[None, :] + 0
        return [mask(q, k).expand(queries, keys) for mask in created]

    graphs = []
    masks = torch.compile(fn, backend=lambda module, inputs: graphs.append(module) or module.forward)(torch.ones(1))
    (module,) = graphs
    expressions = selection.Expressions(module)
    nodes = module.graph.output_node().args[0]
    for node, mask in zip(nodes, masks):
        pattern = selection.pattern_of(expressions.of(node), queries, keys)
        if pattern.other_conditions:
            continue
        q, k = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
        shown = torch.ones(queries, keys, dtype=torch.bool)
        shown &= (k <= q + int(pattern.causal_offset)) if pattern.causal_offset is not None else shown
        shown &= (k >= q - int(pattern.window_left)) if pattern.window_left is not None else shown
        assert torch.equal(shown, mask), (node, pattern)
        told += 1
    assert told > 12


@pytest.fixture
def window_on_a_gpu():
    """The graph of attention in a window as Dynamo would have it of bfloat16 on a GPU, which need not be there."""
    from torch._subclasses import FakeTensorMode

    graph = torch.fx.Graph()
    q, k, v = (graph.placeholder(name) for name in "qkv")
    keys = graph.call_function(torch.arange, (16,), {"device": "cuda"})
    queries = graph.call_method("unsqueeze", (graph.call_function(torch.arange, (12, 16), {"device": "cuda"}), 1))
    causal = graph.call_function(operator.le, (keys, queries))
    near = graph.call_function(operator.gt, (keys, graph.call_function(operator.sub, (queries, 4))))
    mask = graph.call_function(operator.and_, (causal, near))
    found = graph.call_function(F.scaled_dot_product_attention, (q, k, v), {"attn_mask": mask, "scale": 0.25})
    graph.output((found,))
    with FakeTensorMode():
        shapes = (2, 4, 4, 8), (2, 4, 16, 8), (2, 4, 16, 8)
        given = [torch.empty(s, dtype=torch.bfloat16, device="cuda") for s in shapes]
        values = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = given[len(values)]
            elif node.op != "output":
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.get)
                method = node.op == "call_method"
                call = getattr(args[0], node.target) if method else node.target
                values[node] = call(*args[method:], **kwargs)
            if node in values:
                node.meta["example_value"] = values[node]
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        yield module, given


def test_a_window_takes_the_flash_kernel_on_a_gpu(window_on_a_gpu):
    module, given = window_on_a_gpu
    before = module(*given)[0]
    selection.simplify_masks(module)
    (call,) = (n for n in module.graph.nodes if "_flash_attention_forward" in str(n.target))
    assert call.kwargs == {"scale": 0.25, "window_size_left": 3, "window_size_right": 0}
    assert call.args[5:8] == (4, 16, 0.0) and call.args[8] is True
    assert not any(n.target is torch.arange for n in module.graph.nodes)
    after = module(*given)[0]
    assert (after.shape, after.dtype) == (before.shape, before.dtype)


def test_explain_says_which_kernel_and_why():
    told = mlirfuse.torch.explain(by_indices(CAUSAL["and"]), *(x.requires_grad_() for x in qkv()))
    assert "_scaled_dot_product_flash_attention_for_cpu" in str(told)
    assert "the mask is causal: is_causal" in str(told)
    told = mlirfuse.torch.explain(by_indices(lambda b, q, k: (k <= q) & (k > q - 4)), *qkv())
    assert "the mask stays a tensor: causal and a window of 4; flex attention's kernel, which skips" in str(told)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernel_is_eagers():
    q, k, v = (x.cuda().bfloat16().requires_grad_() for x in qkv())
    with torch.profiler.profile() as eager:
        F.scaled_dot_product_attention(q, k, v)
    kernels = ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention")
    chosen = next(name for name in kernels if any(e.key == f"aten::{name}" for e in eager.key_averages()))
    seen = []

    def backend(module, inputs):
        selection.simplify_masks(module)
        with selection.kernels_of_eager():
            from torch._dynamo.backends.common import aot_autograd

            def compiler(graph, given):
                seen.extend(str(n.target) for n in graph.graph.nodes if "attention" in str(n.target))
                return graph.forward

            return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)(module, inputs)

    torch.compile(F.scaled_dot_product_attention, backend=backend)(q, k, v)
    assert any(chosen in name for name in seen)


def rotated_attention(x):
    """As language models write it: heads by views of one product's result, halves of them turned."""
    q, k, v = (part.view(2, 16, 2, 8).transpose(1, 2) for part in x.chunk(3, -1))
    turned = lambda y: y * 0.5 + torch.cat([-y[..., 4:], y[..., :4]], -1)  # noqa: E731
    return F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True).transpose(1, 2).reshape(2, 16, 16)


def test_attention_without_dropout_has_no_effects(monkeypatch):
    """torch tags the op as random. As an op with effects it would keep the views of its operands out of kernels."""
    seen = []
    monkeypatch.setattr(backend, "observers", [lambda which, lowered, host: seen.append(lowered.graph)])
    torch._dynamo.reset()
    torch.manual_seed(0)
    w, x = torch.randn(48, 16, dtype=torch.float64), torch.randn(2, 16, 16, dtype=torch.float64)
    fn = lambda x, w: rotated_attention(F.linear(x, w))  # noqa: E731
    with torch.no_grad():
        found = torch.compile(fn, backend="mlirfuse")(x.float(), w.float())
    torch.testing.assert_close(found.double(), fn(x, w), rtol=1e-4, atol=1e-4)
    (graph,) = seen
    attentions = [op for op in graph.ops if "attention" in op.attrs.get("callee", "")]
    assert len(attentions) == 1 and not any(map(has_effect, graph.ops))
    views = {"slice", "reshape", "permute"}
    assert not [op for op in graph.ops if op.name in views and op.group is None]


@pytest.mark.parametrize("given", [(0.5,), ()])
def test_attention_with_dropout_has_effects(given):
    q = torch.empty(1, 1, 4, 8, device="meta")
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = q
    named = {} if given else {"dropout_p": 0.5}
    node = graph.call_function(
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, (x, x, x, *given), named
    )
    assert _has_effects(node)
    node.args, node.kwargs = (x, x, x), {}
    assert not _has_effects(node)
