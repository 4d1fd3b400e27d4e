"""Which experts a GPU leaves to the CPU, planned from bytes; no GPU is asked, and nothing is loaded."""

from dataclasses import replace

import pytest

from stretto.backends.placement import (
    HOP_SECONDS,
    DevicePlan,
    LayerExperts,
    Sizes,
    Speeds,
    plan_placement,
)
from stretto.backends.torch.memory import Need
from stretto.errors import InvalidRequest, ModelError
from tiny_models import tiny_file, tiny_spec

GB = 10**9
CELLS = 8192
# Four layers of 3 GB of experts, of which a token reads a tenth; 2 GB beside them, half of it embeddings.
LAYERS = tuple(
    LayerExperts(i, (f"blk.{i}.ffn_up_exps.weight",), 3 * GB, int(3.3 * GB), 0.1) for i in range(1, 5)
)
SIZES = Sizes(
    Need(14 * GB, 100_000, 0, GB, experts=12 * GB),
    LAYERS,
    (*(name for each in LAYERS for name in each.tensors), "blk.1.attn_q.weight", "token_embd.weight"),
    looked_up=GB,
)
CACHE = CELLS * 100_000


def plan(choice, free=100, speeds=None):
    return plan_placement(SIZES, choice, CELLS, int(free * GB), speeds)


@pytest.mark.parametrize(
    ("free", "layers"), [(16, ()), (15, (1,)), (12.9, (1,)), (12.7, (1, 2)), (4, (1, 2, 3, 4))]
)
def test_as_few_layers_leave_their_experts_to_the_cpu_as_will_do(free, layers):
    found = plan("auto", free)
    assert found.cpu_layers == layers
    assert found.need.fixed + CACHE <= free * GB
    assert found.cpu_bytes == len(layers) * int(3.3 * GB)


@pytest.mark.parametrize(
    ("choice", "layers"),
    [
        (None, ()),
        (0, ()),
        (2, (1, 2)),
        ("cpu", (1, 2, 3, 4)),
        (("blk.[13].*",), (1, 3)),
        (("blk.4.ffn_up*", "blk.2.*"), (2, 4)),
    ],
)
def test_the_caller_says_which(choice, layers):
    assert plan(choice).cpu_layers == layers


def test_a_plan_that_does_not_fit_says_so_in_numbers():
    with pytest.raises(ModelError) as caught:
        plan("auto", 3)
    numbers = "4 of 4 layers", "13.2 GB", "2.0 GB of weights", "0.8 GB for 8,192 cells", "3.0 GB are free"
    for words in numbers:
        assert words in str(caught.value)
    with pytest.raises(ModelError, match=r"the experts of 3 more layers could be on the CPU: experts='auto'"):
        plan(1, 5)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (("blk.9.*",), "names no tensor of this model; experts are 'blk.1.ffn_up_exps.weight'"),
        (("blk.1.*", "*.attn_q.*"), r"'\*.attn_q.\*' of experts= names tensors that stay on the GPU"),
        (5, "experts=5: 4 layers"),
    ],
)
def test_choices_that_mean_nothing_are_refused(choice, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        plan(choice)
    assert caught.value.param == "experts"


def test_a_model_without_experts_has_none_to_place():
    with pytest.raises(InvalidRequest, match="has none") as caught:
        plan_placement(replace(SIZES, layers=()), "auto", CELLS, GB)
    assert caught.value.param == "experts"


def test_what_a_token_reads_on_either_side_bounds_the_speed():
    found = plan(1, speeds=Speeds(1e12, 1e11))
    # 1 GB that is not looked up, and a tenth of three layers' experts; a tenth of one's on the CPU.
    assert found.gpu_read == pytest.approx(1.9 * GB)
    assert found.cpu_read == pytest.approx(0.33 * GB)
    assert found.most_tokens_per_second == pytest.approx(1 / (1.9e-3 + 3.3e-3 + HOP_SECONDS))
    assert plan(None, speeds=Speeds(1e12)).most_tokens_per_second == pytest.approx(1 / 2.2e-3)
    assert plan(1, speeds=Speeds(1e12)).most_tokens_per_second is None
    assert plan(1).most_tokens_per_second is None


def test_a_plan_prints_what_is_where():
    words = str(plan(("blk.[124].*",), speeds=Speeds(1e12, 1e11)))
    assert "CPU: experts of layers 1-2, 4, 9.9 GB, of which a token reads 1.0 GB" in words
    assert "GPU: experts of layer 3, 3.0 GB, of which a token reads 0.3 GB" in words
    assert "GPU: KV cache of 8,192 cells, 0.8 GB" in words
    assert "tokens a second by bandwidth (GPU 1,000 GB/s, CPU 100 GB/s)" in words
    assert str(plan(None, 5)).endswith("of 5.0 GB of GPU memory: it does not fit")
    data = plan(2).as_data()
    assert (data["cpu_layers"], data["expert_layers"]) == ([1, 2], [1, 2, 3, 4])


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss", "deepseek3", "qwen35moe", "nemotron_h_moe", "llama4"])
def test_the_sizes_of_a_file_are_those_of_its_tensors(name):
    file, spec = tiny_file(name), tiny_spec(name)
    sizes = Sizes.of(file, spec)
    experts = {tensor for each in sizes.layers for tensor in each.tensors}
    assert experts == {tensor for tensor in spec.tensors() if "_exps" in tensor}
    assert sizes.need == Need.of(file, spec)
    assert sum(each.gpu_bytes for each in sizes.layers) == sizes.need.experts < sizes.need.weights
    everywhere = DevicePlan(sizes, tuple(each.layer for each in sizes.layers), 1, GB)
    assert 0 < everywhere.need.weights == sizes.need.weights - sizes.need.experts
    stored = sum(file.tensors[tensor].nbytes for tensor in experts)
    assert everywhere.cpu_bytes == pytest.approx(stored, rel=0.1)
