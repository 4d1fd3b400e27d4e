"""Drafts by EAGLE-3 heads: what a head computes, and the text of a plain request, whatever it drafts."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import stretto
from stretto.backends.base import Batch
from stretto.backends.eagle import open_eagle_head
from stretto.backends.reference.layer import rms_norm, silu
from stretto.cache.cells import Cells
from stretto.cache.slots import Slots
from stretto.cli import app
from stretto.engine import next_tokens
from stretto.errors import InvalidRequest, ModelError, StrettoError, Unsupported
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer, mock_llm
from stretto.weights.folder import open_weights
from stretto.weights.tensor import Tensor
from stretto.weights.writer import write_gguf
from tiny_heads import (
    CELLS,
    EPS,
    HEADS,
    KV_HEADS,
    OPTIONS,
    PROMPT,
    head_config,
    head_tensors,
    native,
    reference,
    write_head,
    write_head_file,
)
from tiny_models import tiny_file, tiny_spec


def opened(make=native, name="llama", file=None):
    file = file or tiny_file(name)
    backend = make(file, tiny_spec(name), CELLS)
    backend.open_head = partial(open_eagle_head, file.path, backend.spec, make)
    return backend


def language_model(*args, **options):
    return LLM(opened(*args, **options), byte_tokenizer())


def a_head(path, name="llama", **settings):
    spec = tiny_spec(name)
    tensors = head_tensors(spec, settings.pop("n_draft", 20), settings.pop("n", None))
    return write_head(path, tensors, head_config(spec, tensors, **settings)), tensors


def rotated(x, size):
    """[n, heads × size] at positions 1, 2, …: halves of each head are pairs."""
    x = x.reshape(len(x), -1, size)
    angles = np.arange(1, len(x) + 1)[:, None] * 10_000.0 ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def written_out(weights, embeddings, tokens, states, normed_before):
    """float32[n, draft vocabulary] behind tokens, of the states of those before: the formula of EAGLE-3."""
    layer = {name.removeprefix("midlayer."): value for name, value in weights.items()}
    g = states @ weights["fc.weight"].T
    normed = rms_norm(g, layer["hidden_norm.weight"], EPS)
    read = np.concatenate(
        [rms_norm(embeddings[tokens], layer["input_layernorm.weight"], EPS), normed], axis=1
    )
    q, k, v = (read @ layer[f"self_attn.{one}_proj.weight"].T for one in "qkv")
    size = q.shape[1] // HEADS
    q, k, v = rotated(q, size), rotated(k, size), v.reshape(len(v), KV_HEADS, size)
    mixed = np.empty_like(q)
    for head in range(HEADS):
        of = head // (HEADS // KV_HEADS)
        scores = q[:, head] @ k[:, of].T / np.sqrt(size)
        scores[np.triu_indices(len(scores), 1)] = -np.inf
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed[:, head] = shares / shares.sum(axis=1, keepdims=True) @ v[:, of]
    x = normed if normed_before else g
    x = x + mixed.reshape(len(x), -1) @ layer["self_attn.o_proj.weight"].T
    between = rms_norm(x, layer["post_attention_layernorm.weight"], EPS)
    gate, up = (between @ layer[f"mlp.{one}_proj.weight"].T for one in ("gate", "up"))
    x = x + (silu(gate) * up) @ layer["mlp.down_proj.weight"].T
    return rms_norm(x, weights["norm.weight"], EPS) @ weights["lm_head.weight"].T, x


def computed(head, tokens, states):
    head.open(CELLS)
    batch = Batch()
    for position, vector in enumerate(head.join(tokens, head.fuse(states)), 1):
        batch.add_vector(vector, position, (0,), logits=True)
    batch.place(Cells(CELLS))
    return head.forward(batch)


@pytest.mark.parametrize("make", [native, reference])
@pytest.mark.parametrize("normed_before", [False, True])
@pytest.mark.parametrize("n", [None, 16])
def test_a_head_computes_what_it_should(make, normed_before, n, tmp_path):
    path, weights = a_head(tmp_path, n=n, norm_before_residual=normed_before)
    backend, spec = opened(make), tiny_spec("llama")
    head = backend.open_head(path)
    states = np.random.default_rng(1).standard_normal((len(PROMPT), 3 * spec.n_embd)).astype(np.float32)
    embeddings = weights.get(
        "embed_tokens.weight", tiny_file("llama").tensors["token_embd.weight"].dequantize()
    )
    logits, made = computed(head, PROMPT, states)
    expected, residual = written_out(weights, embeddings, PROMPT, states, normed_before)
    near = 1e-4 if make is reference else 2e-2
    assert np.allclose(made, residual, atol=near, rtol=near)
    assert np.allclose(logits, expected, atol=4 * near, rtol=near)
    assert head.ids.tolist() == (weights["d2t"] + np.arange(20)).tolist()
    head.close()
    backend.close()


def test_a_file_is_the_same_head_as_a_folder(tmp_path):
    backend, spec = opened(reference), tiny_spec("llama")
    path, weights = a_head(tmp_path / "folder")
    layers = [0, 1, spec.n_layer]
    both = (
        backend.open_head(path),
        backend.open_head(write_head_file(tmp_path / "x.gguf", spec, weights, layers)),
    )
    states = np.random.default_rng(1).standard_normal((len(PROMPT), 3 * spec.n_embd)).astype(np.float32)
    results = [computed(head, PROMPT, states) for head in both]
    assert np.array_equal(results[0][0], results[1][0])
    assert both[0].sites == both[1].sites
    assert [site.name for site in both[0].sites] == [
        "embedding",
        "layers.0.residual",
        f"layers.{spec.n_layer - 1}.residual",
    ]
    assert both[0].ids.tolist() == both[1].ids.tolist()
    for head in both:
        head.close()


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        (
            {
                "eagle_aux_hidden_state_layer_ids": [1, 1, 3],
                "sliding_window": 64,
                "use_sliding_window": False,
            },
            [1, 1, 3],
        ),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 2]}, [1, 2, 2]),
        (
            {
                "eagle_aux_hidden_state_layer_ids": None,
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]},
            },
            [1, 2, 2],
        ),
    ],
)
def test_layers_are_those_of_the_configuration(settings, layers, tmp_path):
    path, _ = a_head(tmp_path, **settings)
    head = opened(reference).open_head(path)
    assert [site.name for site in head.sites] == [f"layers.{i - 1}.residual" for i in layers]
    head.close()


def test_a_configuration_of_speculators_is_read(tmp_path):
    spec = tiny_spec("llama")
    tensors = {name.replace("midlayer.", "layers.0."): value for name, value in head_tensors(spec).items()}
    flat = head_config(spec, tensors)
    outer = {name: flat.pop(name) for name in ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")}
    outer |= {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
    write_head(tmp_path, tensors, {**outer, "transformer_layer_config": flat})
    head = opened(reference).open_head(tmp_path)
    assert head.ids is None
    assert head._state_norm is not None  # the default there
    head.close()


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_each_draft_is_of_the_states_of_its_own_text(name, tmp_path, monkeypatch):
    """Whatever was drafted, accepted or taken back before: as from the whole text at once."""
    path, _ = a_head(tmp_path, name)
    proposed, plain_propose = [], next_tokens.NextTokens.propose

    def propose(self, tokens, most):
        draft = plain_propose(self, tokens, most)
        proposed.append((list(tokens), draft))
        return draft

    monkeypatch.setattr(next_tokens.NextTokens, "propose", propose)
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)
    options = {"temperature": 1, "draft": str(path), "ignore_eos": True}
    with LLM(opened(reference, name), byte_tokenizer()) as llm:
        llm.generate([PROMPT, PROMPT[:4]], seed=2, max_tokens=12, **options)
        llm.generate([9, 8, *PROMPT], seed=3, max_tokens=6, **options)
    backend = opened(reference, name)
    head = backend.open_head(path)
    head.open(CELLS)
    drafts = [(tokens, draft) for tokens, draft in proposed if draft]
    assert len(drafts) > 5
    for tokens, draft in drafts:
        batch = Batch()
        batch.extend(tokens, 0, (0,))
        shown = [batch.tap(site, range(len(tokens))) for site in head.sites]
        batch.place(Cells(CELLS, Slots(8)) if backend.spec.recurrent else Cells(CELLS))
        backend.clear_slots(np.arange(8))
        backend.forward(batch)
        states = np.concatenate([one.values for one in shown], axis=1)
        logits, _ = computed(head, tokens[1:], states[:-1])
        assert head.ids[logits[-1].argmax()] == draft[0], (tokens, draft)
    head.close()
    backend.close()


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"seed": 3, "temperature": 50}, {"seed": 4, "logprobs": 2, "presence_penalty": 1}],
)
@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_the_same_text(name, options, tmp_path, monkeypatch):
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)  # it drafts what it does not believe in, too
    path, _ = a_head(tmp_path, name)
    with language_model(name=name) as llm:
        prompts = [PROMPT, PROMPT[:1], PROMPT[:3], [*PROMPT, 9, 9]]
        plain = llm.generate(prompts, **options, **OPTIONS)
        llm.cache.clear()
        drafted = llm.generate(prompts, draft=str(path), **options, **OPTIONS)
        assert [one.tokens for one in drafted] == [one.tokens for one in plain]
        assert sum(one.usage.drafted_tokens for one in drafted) > 20
        assert [one.logprobs for one in drafted] == [one.logprobs for one in plain]
        again = llm.generate([*PROMPT, 9, 9], draft=str(path), **options, **OPTIONS)
        assert again.tokens == plain[3].tokens
        assert llm.cache.stats().held == 0
        llm.cells.check()
        (cells,) = llm.engine.runner.heads.values()
        cells.cells.check()


def obvious(tmp_path):
    """A model whose next token depends on the last one alone, and a head that knows it from the embedding."""
    file, spec = tiny_file("llama"), tiny_spec("llama")
    tensors = dict(file.tensors)

    def number(name, values):
        old = file.tensors[name]
        data = np.ascontiguousarray(values, np.float32)
        tensors[name] = Tensor(name, old.shape, type(old.format).F32, 0, data.view(np.uint8))

    for name, old in file.tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            number(name, np.zeros(old.shape))
    path = tmp_path / "model.gguf"
    write_gguf(path, dict(file.metadata), tensors)
    return open_weights(path), spec


@pytest.mark.parametrize("make", [native, reference])
def test_drafts_of_a_head_that_knows_are_accepted(make, tmp_path):
    """The model's layers add nothing, so that its next token follows from the last one's embedding.

    The head's V is that embedding, and all queries and keys are the same: rotated, they match their own cell.
    """
    model, spec = obvious(tmp_path)
    n = spec.n_embd
    weights = {name: np.zeros_like(value) for name, value in head_tensors(spec).items()}
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] = np.ones(n, np.float32)
    config = head_config(spec, weights, num_key_value_heads=HEADS, norm_before_residual=True)
    attention = "midlayer.self_attn."
    for one in "qkv":
        weights[f"{attention}{one}_proj.weight"] = np.zeros((n, 2 * n), np.float32)
        weights[f"{attention}{one}_proj.bias"] = np.full(n, 0 if one == "v" else 60, np.float32)
    weights[f"{attention}v_proj.weight"] = np.eye(n, 2 * n) - np.eye(n, 2 * n, n)  # instead of the residual
    weights[f"{attention}v_proj.weight"] = weights[f"{attention}v_proj.weight"].astype(np.float32)
    weights[f"{attention}o_proj.weight"] = np.eye(n, dtype=np.float32)
    weights["norm.weight"] = model.tensors["output_norm.weight"].dequantize()
    output = model.tensors["token_embd.weight" if spec.tied else "output.weight"].dequantize()
    weights["lm_head.weight"] = 50 * output
    path = write_head(tmp_path / "head", weights, config)
    backend = make(model, read_spec(model, CELLS), CELLS)
    backend.open_head = partial(open_eagle_head, model.path, backend.spec, make)
    with LLM(backend, byte_tokenizer()) as llm:
        plain = llm.generate(PROMPT, temperature=0, **OPTIONS)
        steps = llm.metrics.steps
        llm.cache.clear()
        drafted = llm.generate(PROMPT, temperature=0, draft=str(path), **OPTIONS)
        assert drafted.tokens == plain.tokens
        assert drafted.usage.accepted_tokens > 0.8 * drafted.usage.drafted_tokens > 20
        assert llm.metrics.steps - steps < 25


def test_forks_and_truncated_sequences_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)
    path, _ = a_head(tmp_path)
    options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    with language_model() as llm:
        sequence = llm.sequence(PROMPT)
        first = llm.generate(sequence, draft=str(path), **options).tokens
        assert first == llm.generate(PROMPT, **options).tokens
        fork = sequence.fork()
        fork.truncate(len(PROMPT) + 4)
        again = llm.generate(fork, draft=str(path), **{**options, "max_tokens": 8}).tokens
        assert again == first[4:]
        several = {"n": 3, "seed": 1, "max_tokens": 9}
        drafted, plain = llm.generate(PROMPT, draft=str(path), **several), llm.generate(PROMPT, **several)
        assert [one.tokens for one in drafted] == [one.tokens for one in plain]


def test_prefixes_of_other_requests_keep_the_text(tmp_path, monkeypatch):
    """Of cells that requests without drafts left, of those of other heads, and of other keys."""
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)
    one, other = (str(a_head(tmp_path / name)[0]) for name in ("one", "other"))
    options = {"temperature": 0, **OPTIONS}
    with language_model() as llm:
        plain = llm.generate([*PROMPT, 8, 8], **options).tokens
        llm.cache.clear()  # behind cells of requests without drafts a head has none that others could share
        for draft in (one, other, one):
            for salt in (None, "a"):
                got = llm.generate([*PROMPT, 8, 8], draft=draft, cache_salt=salt, **options)
                assert got.tokens == plain
        assert len(llm.engine.runner.heads) == 2
        domains = {
            entry.domain.salt for entry in next(iter(llm.engine.runner.heads.values())).prefixes.entries()
        }
        assert domains == {None, "a"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_hidden_layers": 2}, "heads have one"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 99]}, "99, and the model has"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, "2"]}, "extract_layers"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 1]}, "the shape is"),
        ({"target_hidden_size": 5}, "for a model of width 5"),
        ({"norm_output": True}, "states behind the last norm"),
        ({"sliding_window": 64}, "a window"),
        ({"hidden_act": "gelu"}, "only silu"),
    ],
)
def test_heads_that_do_not_fit_are_refused(settings, words, tmp_path):
    path, _ = a_head(tmp_path, **settings)
    with pytest.raises(ModelError, match=words):
        opened(reference).open_head(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d2t": np.arange(20) + 10_000}, "names tokens beyond"),
        ({"d2t": np.zeros((2, 10), np.float32)}, "integers are needed"),
        ({"lm_head.weight": np.zeros((19, 8), np.float32)}, "the shape is"),
        ({"surprise.weight": np.zeros((4, 4), np.float32)}, "no place in"),
        ({"fc.weight": None}, "'fc.weight'.*missing"),
    ],
)
def test_damaged_heads_are_refused(change, words, tmp_path):
    spec = tiny_spec("llama")
    weights = head_tensors(spec, 20)
    config = head_config(spec, weights)
    kept = {name: value for name, value in {**weights, **change}.items() if value is not None}
    with pytest.raises(ModelError, match=words):
        opened(reference).open_head(write_head(tmp_path, kept, config))


def test_a_head_without_an_output_takes_the_models(tmp_path):
    spec = tiny_spec("llama")
    weights = head_tensors(spec)
    config = head_config(spec, weights)
    del weights["lm_head.weight"]
    backend = opened(reference)
    head = backend.open_head(write_head(tmp_path, weights, config))
    states = np.ones((2, 3 * spec.n_embd), np.float32)
    assert computed(head, [1, 2], states)[0].shape == (2, spec.n_vocab)
    head.close()


def test_what_is_no_head_is_named(tmp_path):
    path, _ = a_head(tmp_path / "head")
    with mock_llm("abc") as llm, pytest.raises(Unsupported, match=r"heads for drafts \(EAGLE-3\)"):
        llm.generate("a", draft=str(path))
    with language_model() as llm:
        model = tiny_file("llama").path
        with pytest.raises(ModelError, match="no EAGLE-3 head"):
            llm.generate(PROMPT, draft=str(model))
        with pytest.raises(InvalidRequest, match="the path of an EAGLE-3 head"):
            llm.generate(PROMPT, draft=str(tmp_path / "nothing"))
        for wrong in ("a" * 100_000, "a\0b", ""):
            with pytest.raises(InvalidRequest, match="the path of an EAGLE-3 head"):
                llm.generate(PROMPT, draft=wrong)
        with pytest.raises(StrettoError, match=r"config\.json"):
            llm.generate(PROMPT, draft=str(tmp_path))


def test_a_head_is_no_model(tmp_path):
    path, _ = a_head(tmp_path)
    with pytest.raises(ModelError, match="pass this file as draft="):
        read_spec(open_weights(path))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_loaded_model_drafts_with_a_head(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(next_tokens, "LEAST", 0.0)
    folder = Path(__file__).parent.parent / "data" / "folders" / "llama"
    with stretto.load(folder, backend=backend, cells=128, threads=2) as llm:
        weights = head_tensors(llm.spec, 50)
        path = write_head(tmp_path / "head", weights, head_config(llm.spec, weights))
        plain = llm.generate("The quick", temperature=0, max_tokens=16, ignore_eos=True)
        drafted = llm.generate("The quick", draft=str(path), temperature=0, max_tokens=16, ignore_eos=True)
        assert drafted.tokens == plain.tokens
        assert drafted.usage.drafted_tokens > 0
        assert llm.metrics.drafted_tokens == drafted.usage.drafted_tokens
    run = CliRunner().invoke(
        app,
        [
            "run",
            str(folder),
            "The quick",
            "--draft",
            str(path),
            "--max-tokens",
            "4",
            "--json",
            "--cells",
            "128",
        ],
    )
    assert run.exit_code == 0, run.output
