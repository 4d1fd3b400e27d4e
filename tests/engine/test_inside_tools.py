"""The tools on captures and patches: what they show is what the model does."""

import numpy as np
import pytest

from stretto import Capture, Patch, inside
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from stretto.weights.safetensors import write_arrays
from tiny_models import N_CELLS, tiny_file, tiny_spec

CLEAN = [5, 17, 9, 33, 2, 40]
CORRUPTED = [5, 17, 21, 33, 2, 40]
MEASURED = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 1, "logprob_tokens": [7, 9]}


def new_llm(name):
    backend = NativeBackend(tiny_file(name), tiny_spec(name), N_CELLS, 2, "f32", n_slots=4)
    return LLM(backend, byte_tokenizer())


@pytest.fixture(scope="module")
def llm():
    with new_llm("llama") as found:
        yield found


def difference(llm, prompt, **options):
    first, second = llm.generate(prompt, **MEASURED, **options).logprobs[0].top
    return np.float32(first.logprob - second.logprob)


def test_the_lens_of_the_last_layer_is_the_model(llm):
    lens = inside.logit_lens(llm, CLEAN, top=3)
    assert lens.tokens.shape == lens.logprobs.shape == (llm.spec.n_layer, len(CLEAN), 3)
    for place in range(len(CLEAN)):
        [event] = llm.generate(
            CLEAN[: place + 1], **{**MEASURED, "logprobs": 3, "logprob_tokens": ()}
        ).logprobs
        assert lens.tokens[-1, place].tolist() == [one.token for one in event.top]
        np.testing.assert_allclose(lens.logprobs[-1, place], [one.logprob for one in event.top], atol=1e-5)
    assert (lens.tokens[0] != lens.tokens[-1]).any()
    assert len(str(lens).splitlines()) == 1 + llm.spec.n_layer


def test_a_grid_patches_each_layer_at_each_token(llm):
    grid = inside.patching_grid(llm, CLEAN, CORRUPTED, 7, 9)
    assert grid.values.shape == (llm.spec.n_layer, len(CLEAN))
    assert (np.float32(grid.plain), np.float32(grid.clean)) == (
        difference(llm, CORRUPTED),
        difference(llm, CLEAN),
    )
    assert grid.restored[-1, -1] == 1  # the whole stream behind the last token is the clean one's
    assert not grid.restored[:, :2].any()  # tokens before the change have the same values
    assert not grid.restored[-1, :-1].any()  # nobody reads the last layer of earlier tokens
    assert len(str(grid).splitlines()) == 1 + llm.spec.n_layer


def test_ablated_heads_are_patched_requests(llm):
    grid = inside.ablate_heads(llm, CLEAN, 7, 9)
    assert np.float32(grid.plain) == difference(llm, CLEAN)
    patch = Patch("layers.1.attn.heads", 0.0, heads=[1])
    assert grid.values[1, 1] == difference(llm, CLEAN, patch=patch)
    with pytest.raises(InvalidRequest, match="nothing to restore"):
        grid.restored  # noqa: B018


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: inside.patching_grid(llm, CLEAN, [5, 17], 7), "has 6 tokens and the corrupted one 2"),
        (
            lambda llm: inside.patching_grid(llm, CLEAN, CORRUPTED, 7, part="hook_z"),
            "no layer has a site 'hook_z'",
        ),
        (lambda llm: inside.ablate_heads(llm, CLEAN, ""), "an answer is empty"),
        (lambda llm: inside.logit_lens(llm, CLEAN, top=0), "top must be from 1"),
    ],
)
def test_wrong_values_are_named(llm, call, message):
    with pytest.raises(InvalidRequest, match=message):
        call(llm)


# -- lenses --


def test_a_tuned_lens_translates_streams_first(llm, tmp_path):
    n = llm.spec.n_embd
    rng = np.random.default_rng(2)
    matrix, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, n), (n,)))
    write_arrays(tmp_path / "params.safetensors", {}, {"0.weight": matrix, "0.bias": bias})
    translators = inside.read_translators(tmp_path)
    plain, tuned = (inside.logit_lens(llm, CLEAN, translators=one) for one in (None, translators))
    assert np.array_equal(plain.tokens[1:], tuned.tokens[1:])
    assert not np.array_equal(plain.logprobs[0], tuned.logprobs[0])
    same = inside.logit_lens(llm, CLEAN, translators={0: (0 * matrix, 0 * bias)})
    assert np.array_equal(plain.logprobs, same.logprobs)
    with pytest.raises(InvalidRequest, match="translator of layer 0 must have"):
        inside.logit_lens(llm, CLEAN, translators={0: (matrix[1:], bias)})


def test_long_texts_are_read_in_pieces(llm):
    long = (CLEAN * 9)[:50]
    lens = inside.logit_lens(llm, long, top=1)
    with llm.sequence(long) as sequence:
        assert lens.tokens[-1, -1, 0] == sequence.logits.argmax()


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "gpt2", "qwen35"])
def test_what_parts_add_sums_to_the_difference_of_logits(name):
    with new_llm(name) as llm, llm.sequence(CLEAN) as sequence:
        found = inside.attribute(llm, CLEAN, 7, 9)
        expected = float(sequence.logits[7] - sequence.logits[9])
        assert abs(found.total - expected) < 0.02 * max(1, abs(expected))
        assert abs(found.values.sum() - found.total) < 0.1 * np.abs(found.values).sum()
        assert found.parts[0] == "embedding"
        assert str(found).splitlines()[-1].startswith("total")


# -- experts, attention, harvests, autoencoders --


def test_ablated_experts_are_patched_requests():
    with new_llm("mixtral") as llm:
        grid = inside.ablate_experts(llm, CLEAN, 7, 9)
        site = "layers.1.experts"
        capture = Capture(site, tokens="prompt")
        chosen = llm.generate(CLEAN, capture=capture, **MEASURED).captured[site]
        assert np.isnan(grid.values[1]).tolist() == [
            expert not in chosen for expert in range(grid.values.shape[1])
        ]
        expert = int(chosen[0, 0])
        left = (chosen != expert).astype(np.float32)
        patch = Patch(f"{site}.weights", left, tokens=range(len(CLEAN)), how="scale")
        assert grid.values[1, expert] == difference(llm, CLEAN, patch=patch)


def test_attention_is_what_one_watched_token_has(llm):
    shares = inside.attention(llm, CLEAN)
    assert shares.shape == (llm.spec.n_layer, llm.spec.n_head, len(CLEAN), len(CLEAN))
    np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
    assert not np.triu(shares, 1).any()
    assert np.array_equal(inside.attention(llm, CLEAN, layers=[1])[0], shares[1])
    with pytest.raises(InvalidRequest, match="layers must be"):
        inside.attention(llm, CLEAN, layers=[99])
    with pytest.raises(InvalidRequest, match="layers must be"):
        inside.attention(llm, CLEAN, layers=0)


def test_a_harvest_has_every_token_of_every_text(llm, tmp_path):
    texts = [[first, *CLEAN[: first % 5 + 1]] for first in range(40)]
    n = inside.harvest(
        llm, iter(texts), ["residual", "layers.1.mlp.out"], tmp_path / "all", piece_bytes=20_000
    )
    parts = list(inside.read_harvest(tmp_path / "all"))
    assert len(parts) > 1
    assert n == sum(map(len, texts)) == sum(len(part["tokens"]) for part in parts)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for number in (0, 17, 39):
        mine = joined["texts"] == number
        assert joined["tokens"][mine].tolist() == texts[number]
        assert joined["places"][mine].tolist() == list(range(len(texts[number])))
        alone = llm.activations(texts[number], [1])[0]
        assert np.array_equal(joined["layers.1.residual"][mine], alone)
    inside.harvest(llm, texts[:3], ["residual"], tmp_path / "last", tokens=[-1])
    [part] = inside.read_harvest(tmp_path / "last")
    assert part["tokens"].tolist() == [text[-1] for text in texts[:3]]
    with pytest.raises(InvalidRequest, match="is not empty"):
        inside.harvest(llm, texts, ["residual"], tmp_path / "all")
    with pytest.raises(InvalidRequest, match="does not have"):
        inside.harvest(llm, texts, ["hook_resid"], tmp_path / "none")


def autoencoder(llm, n=12, **options):
    rng = np.random.default_rng(3)
    shapes = (llm.spec.n_embd, n), (n,), (n, llm.spec.n_embd), (llm.spec.n_embd,)
    return inside.SparseAutoencoder(
        *(rng.standard_normal(one).astype(np.float32) for one in shapes), **options
    )


def test_features_are_set_and_the_rest_stays(llm):
    site = "layers.0.residual"
    options = {**MEASURED, "capture": Capture(site, tokens="prompt")}
    plain = llm.generate(CLEAN, **options).captured[site]
    found = autoencoder(llm)
    same = llm.generate(CLEAN, patch=found.patch(site), **options).captured[site]
    np.testing.assert_allclose(same, plain, atol=1e-5)
    features = found.encode(plain)
    clamped = llm.generate(CLEAN, patch=found.patch(site, {3: 5.0}), **options).captured[site]
    expected = plain + np.outer(5.0 - features[:, 3], found.W_dec[3])
    np.testing.assert_allclose(clamped, expected, rtol=1e-4, atol=1e-4)
    lossy = llm.generate(CLEAN, patch=found.patch(site, keep_error=False), **options).captured[site]
    np.testing.assert_allclose(lossy, found.decode(features), rtol=1e-4, atol=1e-4)
    assert ((autoencoder(llm, k=2).encode(plain) != 0).sum(axis=1) <= 2).all()
    high = np.full(12, 1e9, np.float32)
    assert not autoencoder(llm, threshold=high).encode(plain).any()


def test_autoencoders_are_read_and_checked(llm, tmp_path):
    found = autoencoder(llm)
    arrays = {name: getattr(found, name) for name in ("W_enc", "b_enc", "W_dec", "b_dec")}
    write_arrays(tmp_path / "sae.safetensors", {}, arrays)
    rows = np.ones((2, llm.spec.n_embd), np.float32)
    assert np.array_equal(
        inside.SparseAutoencoder.load(tmp_path / "sae.safetensors").encode(rows), found.encode(rows)
    )
    with pytest.raises(InvalidRequest, match="b_dec has the shape"):
        inside.SparseAutoencoder(*list(arrays.values())[:3], arrays["b_enc"])
    with pytest.raises(InvalidRequest, match="clamp must be"):
        found.patch("layers.0.residual", {99: 1.0})
    with pytest.raises(InvalidRequest, match="k must be"):
        autoencoder(llm, k=0)
