"""Capture and patch: values inside the passes that make a request's tokens, and of no other request."""

import numpy as np
import pytest

from stretto import Batch, Capture, Patch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.errors import InvalidRequest, Unsupported
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import N_CELLS, tiny_file, tiny_spec

PROMPT = [5, 17, 9, 33, 2, 40, 11, 3]
OTHER = [7, 7, 21, 30, 4]
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
KINDS = [NativeBackend, ReferenceBackend]
FAMILIES = ["llama", "gemma3", "mixtral", "qwen35", "falcon-h1", "gpt-oss", "deepseek3", "cohere2"]


def new_llm(kind=NativeBackend, name="llama", threads=2, **options):
    more = {"threads": threads, "kv": "f32"} if kind is NativeBackend else {}
    backend = kind(tiny_file(name), tiny_spec(name), N_CELLS, n_slots=8, **more)
    return LLM(backend, byte_tokenizer(), **options)


@pytest.fixture(params=KINDS, ids=["native", "reference"])
def llm(request):
    with new_llm(request.param) as found:
        yield found


def logits_of(llm, prompt, **options):
    """The text with the log-probabilities of its tokens."""
    result = llm.generate(prompt, logprobs=3, **GREEDY, **options)
    return result.tokens, [(token.logprob, token.top) for token in result.logprobs]


def same(llm, found, expected):
    """The same bits; NumPy's products depend on the number of rows."""
    if llm.precision == "exact":
        return np.allclose(found, expected, rtol=1e-4, atol=1e-4)
    return np.array_equal(found, expected)


# -- sites --


def test_sites_are_those_of_the_layers_parts():
    with new_llm(name="mixtral") as llm:
        sites = llm.sites()
        assert sites["layers.0.attn.heads"].heads == llm.spec.layers[0].attention.n_head
        assert {"embedding", "layers.1.residual", "layers.0.experts", "layers.0.mlp.out"} <= sites.keys()
        assert "layers.0.recurrent.out" not in sites
    with new_llm(name="qwen35") as llm:
        assert "layers.0.recurrent.out" in llm.sites()
        assert "layers.0.attn.out" not in llm.sites()


@pytest.mark.parametrize("name", FAMILIES)
def test_both_backends_show_the_same_values(name):
    found = []
    for kind in KINDS:
        with new_llm(kind, name) as llm:
            result = llm.generate(PROMPT, capture=Capture("*", tokens="prompt"), **GREEDY)
            found.append(result.captured)
            assert list(result.captured) == list(llm.sites())
    ours, oracle = found
    for site, expected in oracle.items():
        if expected.dtype == np.int32:  # of the same experts; those of equal scores may change places
            assert (np.sort(ours[site]) == np.sort(expected)).mean() > 0.9
        elif not site.endswith("weights"):
            assert np.linalg.norm(ours[site] - expected) < 0.03 * np.linalg.norm(expected), site


# -- capture --


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen35"])
@pytest.mark.parametrize("kind", KINDS, ids=["native", "reference"])
def test_a_capture_changes_no_bit_of_its_tokens(kind, name):
    with new_llm(kind, name) as llm:
        plain = logits_of(llm, PROMPT)
        assert logits_of(llm, PROMPT, capture=Capture("*")) == plain


def test_captured_values_are_those_of_every_computed_token(llm):
    result = llm.generate(PROMPT, capture=Capture("residual", "embedding"), **GREEDY)
    captured = result.captured
    assert captured.places == list(range(len(PROMPT) + 5))  # the last token was sampled, not computed
    assert captured.tokens == PROMPT + result.tokens[:-1]
    whole = llm.activations(captured.tokens, list(range(llm.spec.n_layer)))
    assert same(llm, captured.stack("residual"), whole)
    assert captured["embedding"].shape == (len(captured.tokens), llm.spec.n_embd)


def test_threads_and_neighbours_change_no_bit_of_what_is_captured():
    capture = Capture("*")
    with new_llm(threads=1) as llm:
        alone = llm.generate(PROMPT, capture=capture, **GREEDY).captured
    with new_llm(threads=2) as llm:
        plain = llm.generate(OTHER, **GREEDY).tokens
        streams = [llm.stream(PROMPT, capture=capture, **GREEDY), llm.stream(OTHER, **GREEDY)]
        both = [stream.result for stream in streams]
    assert both[1].tokens == plain
    assert both[1].captured is None
    assert all(np.array_equal(alone[site], both[0].captured[site]) for site in alone)


def test_a_cached_prompt_is_computed_again_to_be_captured(llm):
    llm.generate(PROMPT, **GREEDY)
    first = llm.generate(PROMPT, capture=Capture("residual"), **GREEDY)
    assert first.usage.cached_tokens == 0
    assert len(first.captured.tokens) == len(PROMPT) + 5
    later = llm.generate(PROMPT, capture=Capture("residual", tokens="generated"), **GREEDY)
    assert later.usage.cached_tokens == len(PROMPT) - 1
    last = first.captured["layers.0.residual"][len(PROMPT) :]
    assert same(llm, later.captured["layers.0.residual"], last)


def test_named_places_and_pieces(llm):
    pieces = []
    capture = Capture("layers.1.mlp.out", tokens=[-1, 2], callback=pieces.append)
    assert llm.generate(PROMPT, capture=capture, **GREEDY).captured is None
    assert [place for piece in pieces for place in piece.places] == [2, len(PROMPT) - 1]
    generated = []
    capture = Capture("layers.1.mlp.out", tokens="generated", callback=generated.append)
    llm.generate(PROMPT, capture=capture, **GREEDY)
    assert [piece.places for piece in generated] == [[len(PROMPT) + i] for i in range(5)]


def test_a_callback_that_raises_ends_its_request_alone(llm):
    def broken(piece):
        raise ValueError("no room")

    streams = [llm.stream(PROMPT, capture=Capture("residual", callback=broken), **GREEDY)]
    streams.append(llm.stream(OTHER, **GREEDY))
    with pytest.raises(ValueError, match="no room"):
        list(streams[0])
    assert len(streams[1].result.tokens) == 6


def test_a_continued_sequence_captures_what_this_request_computes(llm):
    with llm.sequence(PROMPT) as sequence:
        sequence.logits  # noqa: B018
        captured = llm.generate(sequence, capture=Capture("residual"), **GREEDY).captured
        assert captured.places[-5:] == [len(PROMPT) + i for i in range(5)]
        plain = llm.generate(PROMPT + captured.tokens[-5:], capture=Capture("residual"), **GREEDY).captured
        assert same(llm, captured["layers.0.residual"][-1], plain["layers.0.residual"][len(PROMPT) + 4])
        assert llm.generate(sequence, **GREEDY).captured is None


def test_saved_captures_are_read_by_the_library(llm, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    captured = llm.generate(PROMPT, capture=Capture("layers.0.residual"), **GREEDY).captured
    captured.save(tmp_path / "hello.safetensors")
    read = safetensors.load_file(tmp_path / "hello.safetensors")
    assert np.array_equal(read["layers.0.residual"], captured["layers.0.residual"])
    assert read["tokens"].tolist() == captured.tokens


# -- patch --


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen35", "falcon-h1"])
@pytest.mark.parametrize("kind", KINDS, ids=["native", "reference"])
def test_a_patch_of_the_same_values_changes_no_bit(kind, name):
    with new_llm(kind, name) as llm:
        plain = logits_of(llm, PROMPT)
        patches = [
            Patch(site.name, lambda rows, places: rows) for site in llm.sites().values() if not site.fixed
        ]
        assert logits_of(llm, PROMPT, patch=patches) == plain


@pytest.mark.parametrize(
    "site", ["layers.0.residual", "layers.0.attn.heads", "layers.1.attn.out", "layers.0.mlp.in"]
)
def test_both_backends_patch_alike(site):
    found = []
    for kind in KINDS:
        with new_llm(kind) as llm:
            patch = Patch(site, 0.0, tokens=[2, 5])
            captured = llm.generate(
                PROMPT, patch=patch, capture=Capture("*", tokens="prompt"), **GREEDY
            ).captured
            assert not captured[site][[2, 5]].any()  # what is captured is what the pass went on with
            assert captured[site][3].any()
            found.append(captured[f"layers.{llm.spec.n_layer - 1}.residual"])
    assert np.linalg.norm(found[0] - found[1]) < 0.03 * np.linalg.norm(found[1])


def test_patches_add_scale_and_project_out(llm):
    rng = np.random.default_rng(1)
    direction = rng.standard_normal(llm.spec.n_embd).astype(np.float32)
    site, options = "layers.0.residual", {"capture": Capture("layers.0.residual", tokens="prompt"), **GREEDY}
    plain = llm.generate(PROMPT, **options).captured[site]
    added = llm.generate(PROMPT, patch=Patch(site, direction, how="add"), **options).captured[site]
    assert np.array_equal(added, plain + direction)
    scaled = llm.generate(PROMPT, patch=Patch(site, 2, how="scale", tokens=[1]), **options).captured[site]
    assert np.array_equal(scaled[1], 2 * plain[1])
    assert np.array_equal(scaled[2:], plain[2:])
    left = llm.generate(PROMPT, patch=Patch(site, direction, how="project_out"), **options).captured[site]
    assert np.abs(left @ direction).max() < 1e-4 * np.abs(plain @ direction).max() + 1e-4


def test_a_whole_stream_patched_in_makes_the_other_texts_logits(llm):
    # All of the last layer's residual comes from another prompt of the same length: so do the logits.
    other = [*OTHER, 1, 2, 8]
    site = f"layers.{llm.spec.n_layer - 1}.residual"
    values = llm.generate(other, capture=Capture(site, tokens="prompt"), **GREEDY).captured[site]
    options = {"temperature": 0, "max_tokens": 1, "ignore_eos": True, "logprobs": 1}
    expected = llm.generate(other, **options)
    patch = Patch(site, values, tokens=list(range(len(other))))
    patched = llm.generate(PROMPT, patch=patch, **options)
    assert patched.tokens == expected.tokens
    assert patched.logprobs[0].logprob == expected.logprobs[0].logprob


def test_one_head_is_ablated(llm):
    site = llm.sites()["layers.0.attn.heads"]
    captured = llm.generate(
        PROMPT, patch=Patch(site.name, 0.0, heads=[1]), capture=Capture(site.name), **GREEDY
    ).captured[site.name]
    heads = captured.reshape(len(captured), site.heads, -1)
    assert not heads[:, 1].any()
    assert heads[:, 0].any()


def test_patched_cells_are_shared_with_nobody(llm):
    patch, longer = Patch("layers.0.residual", 3.0, how="scale"), [*PROMPT, *OTHER]
    patched = llm.generate(PROMPT, patch=patch, **GREEDY)
    later = llm.generate(longer, **GREEDY)
    assert later.usage.cached_tokens == 0
    again = llm.generate(PROMPT, patch=patch, **GREEDY)  # not from the cells of the plain text either
    assert again.usage.cached_tokens == 0
    assert again.tokens == patched.tokens
    assert llm.generate(longer, **GREEDY).tokens == later.tokens


def test_patched_requests_leave_their_neighbours_alone(llm):
    plain = llm.generate(OTHER, **GREEDY).tokens
    patch = Patch("residual", 5.0, how="add")
    streams = [llm.stream(PROMPT, patch=patch, **GREEDY), llm.stream(OTHER, **GREEDY)]
    results = [stream.result for stream in streams]
    assert results[1].tokens == plain


def test_a_function_that_raises_ends_its_request_alone(llm):
    def broken(rows, places):
        raise ZeroDivisionError("in the middle of a pass")

    streams = [llm.stream(PROMPT, patch=Patch("layers.1.mlp.out", broken), **GREEDY)]
    streams.append(llm.stream(OTHER, **GREEDY))
    with pytest.raises(ZeroDivisionError, match="middle"):
        list(streams[0])
    assert len(streams[1].result.tokens) == 6


@pytest.mark.parametrize("compute", [lambda llm, seq: seq.logits, lambda llm, seq: llm.generate(OTHER)])
def test_a_function_computes_nothing_in_the_middle_of_a_pass(llm, compute):
    with llm.sequence(OTHER) as sequence:
        patch = Patch("layers.1.mlp.out", lambda rows, places: compute(llm, sequence) and rows)
        with pytest.raises(InvalidRequest, match=r"in the middle of a pass|cannot run requests"):
            llm.generate(PROMPT, patch=patch, **GREEDY)
        assert sequence.logits.shape == (llm.spec.n_vocab,)


def test_huge_patches_end_their_request_and_leave_no_trace():
    with new_llm() as llm:
        plain = llm.generate(OTHER, **GREEDY).tokens
        for value, how, message in [(1e38, "scale", "too large"), (3e38, "add", "NaN")]:
            with pytest.raises(InvalidRequest, match=message):
                llm.generate(PROMPT, patch=Patch("layers.0.attn.in", value, how=how), **GREEDY)
        for first in range(4):  # through all cells
            llm.generate([first] * 30, **GREEDY)
        assert llm.generate(OTHER, **GREEDY).tokens == plain


def test_private_cells_are_given_back_at_once(llm):
    llm.generate(PROMPT, patch=Patch("layers.0.residual", 1.0, how="add"), **GREEDY)
    llm.generate(PROMPT, capture=Capture("layers.0.residual"), **GREEDY)
    assert llm.cache.stats().parked == 0
    llm.generate(PROMPT, capture=Capture("layers.0.residual", tokens="generated"), **GREEDY)
    assert llm.cache.stats().parked > len(PROMPT)


def test_a_request_that_cannot_start_leaves_no_taps_in_its_sequence(llm):
    with llm.sequence(PROMPT) as sequence:
        with pytest.raises(InvalidRequest, match="do not fit the grammar"):
            llm.generate(
                sequence, capture=Capture("residual"), grammar={"type": "integer"}, continues=3, max_tokens=2
            )
        assert sequence._track.taps is None
        assert llm.generate(sequence, **GREEDY).captured is None


# -- what is refused --


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capture": "residual"}, "must be a stretto.Capture"),
        ({"capture": Capture("layers.77.residual")}, "does not have; its layers have"),
        ({"capture": Capture("residual", tokens=[-99])}, "no token -99 in a prompt of 8"),
        ({"patch": Patch("layers.0.residual", [1.0, 2.0])}, "numbers each, not 2"),
        (
            {"patch": Patch("layers.0.attn.heads", 0.0, heads=[99])},
            "heads of layers.0.attn.heads are numbers",
        ),
        (
            {"patch": Patch("layers.0.mlp.out", lambda rows, places: rows[:, :3])},
            "must return finite numbers",
        ),
        ({"patch": [3]}, "patch must hold"),
        ({"capture": Capture("residual", tokens=[-1, 7])}, "are the same token"),
        ({"patch": Patch("layers.0.mlp.out", lambda rows, places: "no")}, "returns must be numbers"),
        ({"capture": Capture("residual"), "n": 2}, "capture and n do not go together"),
        ({"capture": Capture("residual"), "loop": "fused"}, "do not go together"),
        ({"patch": Patch("residual", 0.0), "draft": "lookup"}, "patch and draft do not go together"),
    ],
)
def test_wrong_values_are_named(llm, options, message):
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(PROMPT, **{**GREEDY, **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Capture(), "names of sites"),
        (lambda: Capture("residual", tokens="some"), "tokens must be"),
        (lambda: Capture("residual", callback=3), "callback must be"),
        (lambda: Patch("residual", 0.0, how="multiply"), "how must be"),
        (lambda: Patch("residual", float("nan")), "all finite"),
        (lambda: Patch("residual", np.zeros(8), how="project_out"), "a direction"),
        (lambda: Patch("residual", np.ones((2, 8))), "tokens must be a list of as many places"),
        (lambda: Patch("residual", "many"), "must be numbers"),
        (lambda: Patch("attn.heads", 0.0, heads="12"), "heads must be"),
        (lambda: Patch("attn.heads", 0.0, heads=[1.5]), "heads must be"),
        (lambda: Patch("attn.heads", 0.0, heads=[1, 1]), "each of them once"),
        (lambda: Capture("residual", tokens=[2, 2]), "each of them once"),
        (lambda: Patch("residual", lambda rows, places: rows, how="add"), "leave how out"),
    ],
)
def test_what_can_never_be_right_is_refused_when_it_is_made(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_chosen_experts_and_shared_inputs_cannot_be_changed():
    with new_llm(name="mixtral") as llm, pytest.raises(InvalidRequest, match="change their weights"):
        llm.generate(PROMPT, patch=Patch("layers.0.experts", 0.0), **GREEDY)
    with new_llm(name="cohere2") as llm, pytest.raises(InvalidRequest, match="reads the same values"):
        llm.generate(PROMPT, patch=Patch("layers.0.attn.in", 0.0), **GREEDY)


def test_rows_and_changes_that_a_batch_cannot_have_are_refused(llm):
    batch, sites = Batch(), llm.sites()
    batch.add(5, 0, [999])
    with pytest.raises(InvalidRequest, match="rows from 0 to 0"):
        batch.tap(sites["layers.0.residual"], [1])
    with new_llm(name="mixtral") as other, pytest.raises(InvalidRequest, match="change their weights"):
        batch.tap(other.sites()["layers.0.experts"], [0], lambda rows: None)


def test_a_sequence_is_not_patched(llm):
    with (
        llm.sequence(PROMPT) as sequence,
        pytest.raises(InvalidRequest, match=r"give its tokens \(seq.tokens\)"),
    ):
        llm.generate(sequence, patch=Patch("residual", 0.0), **GREEDY)


def test_backends_without_sites_say_so():
    with mock_llm("Hi") as llm, pytest.raises(Unsupported, match="'sites'"):
        llm.generate([1, 2], capture=Capture("residual"))
