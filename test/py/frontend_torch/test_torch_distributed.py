"""``torch.compile(backend="mlirfuse")`` inside torch.distributed, over gloo: losses and gradients beside one process in
float64, in each of five steps; the collectives of each rank; ranks that are slow, and that die.

The processes run :mod:`torch_distributed_workers`: one set of two and one of four, whose results the tests look at.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch_distributed_workers import spawned

BOUND = 2e-5  # of float32 after five steps, beside each gradient's norm
HALF = 0.05  # of parameters in bfloat16, whose rounding is 2**-8

TWO = {
    "ddp": ("ddp", True),
    "ddp unsplit": ("ddp", False),
    "fsdp2": ("fsdp2", False, False, False),
    "fsdp2 whole in mixed precision": ("fsdp2", True, True, True),
    "tensor parallel": ("tensor_parallel", False, False),
    "sequence and loss parallel": ("tensor_parallel", True, True),
    "context parallel": ("context_parallel",),
    "flex context parallel": ("flex_context_parallel",),
    "pipeline": ("pipeline",),
    "explained": ("explained",),
}
FOUR = {
    "ddp": ("ddp", True),
    "fsdp2": ("fsdp2", False, False, False),
    "sequence parallel": ("tensor_parallel", True, False),
}


def run(ranks: int, folder, checks) -> list[dict]:
    results = spawned(ranks, str(folder), [(key, name, given) for key, (name, *given) in checks.items()])
    assert all(result is not None for result in results), "a rank left no results"
    for result in results:
        for key, found in result.items():
            assert "raised" not in found, f"{key}:\n{found['raised']}"
    return results


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    more = {"warm beside cold": ("warm_beside_cold", str(folder)), "checkpoints": ("checkpoints", f"{folder}/saved")}
    return run(2, folder, TWO | more)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return run(4, tmp_path_factory.mktemp("four"), FOUR)


def check(results, key: str, bound: float = BOUND) -> None:
    for result in results:
        losses, gradients = result[key]["errors"]
        assert losses <= bound and gradients <= bound, (key, losses, gradients)


@pytest.mark.parametrize("key", ["ddp", "ddp unsplit"])
def test_ddp_trains_as_one_process(two, key):
    check(two, key)
    forwards = [which for which, *_ in two[0][key]["graphs"] if which == "forward"]
    assert (len(forwards) > 2) == (key == "ddp")


def test_fsdp2_trains_as_one_process(two):
    check(two, "fsdp2")


def test_fsdp2_in_mixed_precision_with_checkpoints_trains_as_one_process_up_to_rounding(two):
    check(two, "fsdp2 whole in mixed precision", HALF)


@pytest.mark.parametrize("key", ["tensor parallel", "sequence and loss parallel"])
def test_tensor_parallel_trains_as_one_process(two, key):
    check(two, key)


def test_context_parallel_trains_as_one_process(two):
    check(two, "context parallel")
    for result in two:  # keys and values of both layers are gathered, and their gradients are scattered
        orders = {which: order for which, order, _ in result["context parallel"]["graphs"]}
        assert orders["forward"] == 4 * ["all_gather_into_tensor"]
        assert orders["backward"] == 4 * ["reduce_scatter_tensor"]


def test_torchs_context_parallel_style_over_flex_attention(two):
    assert all(result["flex context parallel"]["error"] <= BOUND for result in two)


@pytest.mark.parametrize("key", list(FOUR))
def test_four_ranks_train_as_one_process(four, key):
    check(four, key)


@pytest.mark.slow
def test_fsdp2_over_tensor_parallel_trains_as_one_process(tmp_path):
    check(run(4, tmp_path, {"two dimensions": ("two_dimensions",)}), "two dimensions")


def test_a_pipeline_of_compiled_stages_has_one_processs_gradients(two):
    check(two, "pipeline")
    assert all(result["pipeline"]["own"] > 10 for result in two)


def test_a_rank_with_a_warm_cache_trains_beside_one_with_a_cold_one(two):
    check(two, "warm beside cold")
    warm, cold = (result["warm beside cold"] for result in two)
    assert warm["graphs"] == 0 and cold["graphs"] == 2 and cold["stored"] > 0


@pytest.mark.parametrize("key", ["tensor parallel", "sequence and loss parallel"])
def test_collectives_start_in_the_same_order_on_every_rank(two, key):
    first, *others = ([(which, order) for which, order, _ in result[key]["graphs"]] for result in two)
    assert all(other == first for other in others)
    assert all(order for _, order in first)


def test_products_of_weights_gradients_run_under_collectives_of_the_backward(two):
    (under,) = [between for which, _, between in two[0]["tensor parallel"]["graphs"] if which == "backward"]
    assert sum(count > 0 for count in under) >= len(under) // 2


def test_names_and_checkpoints_stay_torchs(two):
    assert all(result["checkpoints"] == {"names": True, "same": True} for result in two)


def test_explain_tells_of_collectives(two):
    text = two[0]["explained"]["text"]
    assert "collective" in text and "all_gather_into_tensor" in text and "reduce_scatter_tensor" in text


def test_the_others_raise_where_a_rank_dies(tmp_path):
    first, second = spawned(2, str(tmp_path), [("dies", "dies", ())])
    assert second is None
    assert "Error" in first["dies"]["raised"]
