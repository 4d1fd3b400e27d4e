"""Experts on the CPU by the native core, all else on the device: near the reference, and in the engine."""

import numpy as np
import pytest

import stretto
from strange_models import TOKENIZER, TOKENS
from stretto.backends.base import BackendOptions, host_rows
from stretto.backends.batch import Batch, Decoding
from stretto.backends.reference import ReferenceBackend
from stretto.backends.torch import open_torch
from stretto.cache.cells import Cells
from stretto.errors import ModelError, Unsupported
from stretto.structured import Grammar
from stretto.weights.memory import RESERVE_BYTES
from stretto.weights.writer import write_gguf
from tiny_models import ALL, answer, text_batch, text_logits, tiny_file, tiny_spec
from torch_backends import DEVICE, INTERPRETED, REFUSED, in_pieces, near, run, same

ROUTED = [name for name in ALL if name not in REFUSED and tiny_spec(name).has_experts]
# Biases, a shared expert behind a gate, an early router, weighed inputs, no gate, latent attention.
SOME = ("gpt-oss", "qwen2moe", "smallthinker", "llama4", "nemotron_h_moe", "deepseek3")
FEW = ("gpt-oss",) if INTERPRETED else SOME


def opened(name, experts="cpu", kv="f32", precision="high", **more):
    options = BackendOptions(DEVICE, 64, 2, kv, precision, sequences=3, experts=experts, **more)
    backend = open_torch(tiny_file(name), tiny_spec(name), options)
    backend.clear_slots(np.arange(backend.n_slots, dtype=np.int32))
    return backend


def tokens_of(name, n):
    return answer(name, "tokens.0").tolist()[: 6 if INTERPRETED else n]


@pytest.mark.parametrize("name", FEW[:1] if INTERPRETED else ROUTED)
def test_logits_are_near_those_of_the_reference(name):
    tokens = tokens_of(name, 24)
    with_experts = opened(name)
    assert with_experts.placement.cpu_layers == tuple(tiny_spec(name).expert_tensors())
    expected = text_logits(ReferenceBackend(tiny_file(name), tiny_spec(name), 64), tokens)
    near(text_logits(with_experts, tokens), expected, 1e-3)


@pytest.mark.parametrize("name", FEW)
def test_a_text_in_pieces_and_beside_another(name):
    tokens = tokens_of(name, 20)
    whole = text_logits(opened(name), tokens)
    same(in_pieces(opened(name), tokens, [3, 1, len(tokens) - 4]), whole)
    batch = text_batch(tokens[:5], 0, [1])
    for position, token in enumerate(tokens):
        batch.add(token, position, [0], logits=True)
    found = run(opened(name), Cells(64), batch, [2] * 5 + [0] * len(tokens))
    same(found[5:], whole)


def test_steps_of_several_sequences_leave_padding_out():
    """Three rows take a step of four; the fourth is no row of the CPU's."""
    backend, cells, batch = opened("gpt-oss"), Cells(64), Batch()
    for sequence in range(3):
        batch.extend([5 + sequence, 9, 7], 0, [sequence])
    batch.place(cells)
    backend.forward(batch)
    together = host_rows(backend.forward(Decoding(cells, [11, 12, 13], [0, 1, 2])))
    for sequence, token in enumerate([11, 12, 13]):
        whole = text_logits(opened("gpt-oss"), [5 + sequence, 9, 7, token])
        same(together[sequence : sequence + 1], whole[3:])


def test_the_first_layers_alone_or_those_that_patterns_name():
    tokens = tokens_of("gpt-oss", 12)
    expected = text_logits(ReferenceBackend(tiny_file("gpt-oss"), tiny_spec("gpt-oss"), 64), tokens)
    for experts, layers in ((1, (0,)), (("blk.1.*",), (1,)), (0, ())):
        backend = opened("gpt-oss", experts)
        assert backend.placement.cpu_layers == layers
        near(text_logits(backend, tokens), expected, 1e-3)


def test_weights_of_experts_are_on_one_side():
    everywhere, beside = opened("mixtral", None, gpu_memory=1 << 40), opened("mixtral")
    stored = sum(each.gpu_bytes for each in beside.placement.sizes.layers)
    assert everywhere.weight_bytes - beside.weight_bytes >= stored
    assert everywhere.placement.cpu_layers == ()


def test_as_much_as_fits_is_on_the_device():
    plan = opened("gpt-oss").placement
    room = plan.need.fixed + 64 * plan.need.cell + plan.sizes.layers[0].gpu_bytes
    backend = opened("gpt-oss", "auto", gpu_memory=room)
    # Activations are float32 in high precision; the plan knows.
    assert backend.placement.cpu_layers == (0,)
    near(text_logits(backend, [5, 6, 7]), text_logits(opened("gpt-oss"), [5, 6, 7]))
    with pytest.raises(ModelError, match="are free"):
        opened("gpt-oss", "auto", gpu_memory=1000)


def test_memory_of_the_cpu_is_checked_first():
    with pytest.raises(ModelError, match=r"its weights take .* of memory are free"):
        opened("gpt-oss", repack=True, memory=RESERVE_BYTES + 1000)
    assert opened("gpt-oss", memory=1 << 40) is not None
    with pytest.raises(Unsupported, match="repack='shared'"):
        opened("gpt-oss", repack="shared")


def test_scores_that_are_no_numbers_are_an_error():
    backend = opened("mixtral")
    backend._experts.start = spoiled(backend._experts.start)
    if DEVICE == "cuda":  # the host is ahead of it: the pass after this one raises
        assert np.isnan(text_logits(backend, [5, 6, 7])).all()
    with pytest.raises(ModelError, match="layer 0 could not be computed"):
        text_logits(backend, [5, 6, 7])


def spoiled(start):
    """As if a router had chosen an expert that does not exist."""
    return lambda layer, x, chosen, *more: start(layer, x, chosen + 1000, *more)


# -- in the engine --

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A tiny model with experts, and a vocabulary of characters."""
    file, path = tiny_file("mixtral"), tmp_path_factory.mktemp("models") / "model.gguf"
    tokens = [*TOKENS[ord("!") : ord("~")], "th", "<|start|>", "<|end|>"]
    names = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * 94 + [3] * 2, np.int32),
        "tokenizer.ggml.bos_token_id": 94,
        "tokenizer.ggml.eos_token_id": 95,
    }
    weights = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
    write_gguf(path, {**file.metadata, **TOKENIZER, **names}, weights)
    return path


@pytest.fixture(scope="module")
def llm(path):
    options = {"cells": 64, "kv": "f32", "precision": "high", "experts": "cpu", "threads": 2}
    with stretto.load(path, backend="torch", device=DEVICE, **options) as model:
        yield model


@pytest.fixture(scope="module")
def expected(path):
    """Greedy tokens of the reference for a few prompts."""
    with stretto.load(path, backend="reference", cells=64) as model:
        return {prompt: model.generate(prompt, **GREEDY).tokens for prompt in ("ab", "c", "def")}


def test_batches_streams_and_both_loops_give_the_reference_s_tokens(llm, expected):
    prompts = list(expected)
    assert [each.tokens for each in llm.generate(prompts, **GREEDY)] == [expected[each] for each in prompts]
    for loop in ("python", "fused"):
        assert llm.generate("ab", loop=loop, **GREEDY).tokens == expected["ab"]
    assert [token.id for token in llm.stream("c", **GREEDY)] == expected["c"]


def test_forks_saved_sequences_grammars_and_hooks(llm, expected, tmp_path):
    first = llm.sequence("ab")
    fork = first.fork()
    steps = [llm.step([first, fork], temperature=0) for _ in range(4)]
    assert [[each.token for each in step] for step in steps] == [[token] * 2 for token in expected["ab"][:4]]
    first.save(tmp_path / "state.safetensors")
    again = llm.restore(tmp_path / "state.safetensors")
    assert [again.step(temperature=0).token for _ in range(4)] == expected["ab"][4:8]
    for sequence in (first, fork, again):
        sequence.close()
    wanted = llm.generate("c", grammar=Grammar.choices(["xyz", "xya"]), max_tokens=8)
    assert wanted.text in ("xyz", "xya")

    def force(logits, tokens):
        logits[:] = -np.inf
        logits[7] = 0

    assert llm.generate("c", hooks=[force], **GREEDY).tokens == [7] * 12


def test_a_model_is_loaded_with_its_placement(llm, path, monkeypatch):
    assert llm.route.placement is llm.backend.placement
    assert "CPU: experts of layers 0-1" in str(llm.route)
    for options in ({"experts": "cpu"}, {"gpu_memory": 1 << 30}):
        with pytest.raises(Unsupported, match="device='cuda'"):
            stretto.load(path, device="cpu", **options)
    monkeypatch.setattr("stretto.backends.torch.device.missing", lambda device: "there is no GPU")
    with pytest.raises(Unsupported, match="there is no GPU; without it the CPU runs the model"):
        stretto.load(path, experts="cpu")
