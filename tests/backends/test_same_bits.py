"""The promise: a sequence's logits are the same bits, however and beside whatever they are computed.

Everything here says `==`. "Alone" is one forward pass over the whole text, by one thread, in an empty cache.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto import _native
from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.weights.gguf import GGUF
from tiny_models import NAMES, text_batch, text_logits, tiny_file, tiny_spec

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
KERNELS = _native.kernel_names()
STORED = {"smollm2": "smollm2-135m-instruct-q4_1.json", "gemma3": "gemma-3-270m-q4_k_m.json"}


def same(found, expected):
    np.testing.assert_array_equal(found, expected)


def run(backend, cells, batch):
    batch.place(cells)
    return backend.forward(batch)


def random_sizes(n, most, seed=0):
    rng, sizes = np.random.default_rng(seed), []
    while sum(sizes) < n:
        sizes.append(min(int(rng.integers(1, most)), n - sum(sizes)))
    return sizes


def in_chunks(backend, tokens, sizes, cells=None):
    """All rows of a text that is computed in chunks; a size that comes last is repeated."""
    cells, rows, start = cells or Cells(backend.n_cells), [], 0
    sizes = list(sizes)
    while start < len(tokens):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        rows.append(run(backend, cells, text_batch(tokens[start : start + size], start)))
        start += size
    return np.concatenate(rows)


# -- tiny models of every architecture --


def tiny_native(name, n_cells=256, threads=1, kv="f16", **options):
    return NativeBackend(tiny_file(name), tiny_spec(name), n_cells, threads, kv, **options)


def words(n, seed=0):
    return np.random.default_rng(seed).integers(0, 96, n).tolist()


@pytest.fixture(params=KERNELS)
def kernels(request, monkeypatch):
    monkeypatch.setenv("STRETTO_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize(
    ("name", "kv"),
    [(name, "f16") for name in NAMES] + [("llama", "q8"), ("gemma3-linear", "q8"), ("llama", "f32")],
)
def test_chunks_threads_and_layouts(kernels, name, kv):
    text = words(45)
    alone = text_logits(tiny_native(name, kv=kv), text)
    assert np.isfinite(alone).all()
    two = tiny_native(name, kv=kv, threads=2)
    for sizes in ([1], [7], [17, 1, 27], random_sizes(45, 20)):
        same(in_chunks(two, text, sizes), alone)
    same(in_chunks(tiny_native(name, kv=kv, threads=3), text, [40, 2, 1]), alone)
    same(in_chunks(tiny_native(name, kv=kv, threads=2, repack=False), text, [40, 2, 1]), alone)


@pytest.mark.parametrize("n", [2, 7, 16])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_beside_others(kernels, name, n):
    # Sequences of different lengths, prefilled together and then decoded together, one of them late.
    texts = [words(5 + 3 * i, seed=i) for i in range(n)]
    alone = [text_logits(tiny_native(name, 1024), text) for text in texts]
    for threads in (1, 2):
        backend, cells, batch = tiny_native(name, 1024, threads), Cells(1024), Batch()
        order = np.random.default_rng(n).permutation(sum(len(text) - 3 for text in texts))
        queue = [(i, p) for i, text in enumerate(texts) for p in range(len(text) - 3)]
        for which in order:  # rows in any order
            sequence, position = queue[which]
            batch.add(texts[sequence][position], position, [sequence], logits=True)
        for row, which in zip(run(backend, cells, batch), order, strict=True):
            sequence, position = queue[which]
            same(row, alone[sequence][position])
        for step in (-3, -2, -1):
            batch = Batch()
            for i, text in enumerate(texts):
                batch.add(text[step], len(text) + step, [i], logits=True)
            for i, row in enumerate(run(backend, cells, batch)):
                same(row, alone[i][step])


@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("name", ["gemma3", "llama-yarn"])
def test_across_the_borders_of_spans(name, kv):
    # 1,100 cells are five spans. Alone on a single row or with many threads the spans are shared out, in a
    # batch of many rows they are not; the windows of gemma3 lie on both sides of a border.
    text = words(1100)
    whole = text_logits(tiny_native(name, 4096, kv=kv), text)
    backend, cells = tiny_native(name, 4096, threads=2, kv=kv), Cells(4096)
    same(in_chunks(backend, text[:250], [64], cells), whole[:250])
    for position in range(250, 260):
        same(run(backend, cells, text_batch([text[position]], position))[0], whole[position])
    same(run(backend, cells, text_batch(text[260:505], 260)), whole[260:505])
    for position in range(505, 521):
        same(run(backend, cells, text_batch([text[position]], position))[0], whole[position])
    for start, stop in [(521, 1020), (1020, 1023), (1023, 1024), (1024, 1025), (1025, 1090)]:
        same(run(backend, cells, text_batch(text[start:stop], start)), whole[start:stop])
    for other in range(1, 16):
        batch = text_batch(words(20 * other, seed=other), 0, [other])
        run(backend, cells, batch)
    for position in range(1090, 1100):
        batch = Batch()
        for other in range(1, 16):
            batch.add(3, cells.end(other), [other], logits=True)
        batch.add(text[position], position, [0], logits=True)
        same(run(backend, cells, batch)[-1], whole[position])
    same(text_logits(tiny_native(name, 4096, threads=3, kv=kv), text), whole)


@pytest.mark.parametrize("others", [1, 300])
def test_a_cell_that_is_not_the_last_of_its_view(others):
    # Cells at one position stand in order of token id, so a row's own may lie before others, in another span
    # than the last. A row that is probed waits until its K and V are stored; one that is not goes ahead.
    found = []
    for threads in (1, 2, 5):
        backend, cells = tiny_native("llama", 2048, threads=threads), Cells(2048)
        run(backend, cells, text_batch(words(600)))
        crowd = Batch()
        for _ in range(others):
            crowd.add(95, 600, [0])
        run(backend, cells, crowd)
        for probed in ([], [3]):
            row = text_batch([2], 600)
            row.probe(probed)
            found.append(run(backend, cells, row))
            cells.remove_cells(0, row.placement.cells)
    for logits in found[1:]:
        same(logits, found[0])


def test_used_cells_leave_no_trace():
    # Cells in any order, with old contents in all of them.
    for name in ("llama", "gemma3"):
        alone = text_logits(tiny_native(name), words(60))
        backend, cells = tiny_native(name), Cells(256)
        rng = np.random.default_rng(1)
        for sequence in range(8):
            run(backend, cells, text_batch(words(30, seed=9 + sequence), 0, [sequence]))
        for sequence in rng.permutation(8).tolist():
            cells.remove(sequence, 5, 25)
            cells.remove(sequence)
        same(in_chunks(backend, words(60), [13], cells), alone)


# -- a real model --


class Real:
    """SmolLM2, and 1,100 tokens of it computed alone."""

    def __init__(self, path):
        self.file = GGUF(path)
        self.spec = read_spec(self.file)
        stored = json.loads((GOLDEN / STORED["smollm2"]).read_text())
        texts = [stored["score"][name]["ids"] for name in ("prose", "code", "chat")]
        self.tokens = [token for text in texts * 5 for token in text][:1100]
        self.backends = {}
        self._whole = {}

    def backend(self, threads=2, kv="f16"):
        """With 2,500 cells; whoever uses one brings its own table of cells."""
        if (threads, kv) not in self.backends:
            backend = NativeBackend(self.file, self.spec, 2500, threads, kv)
            self.backends[threads, kv] = backend
        return self.backends[threads, kv]

    def rows(self, where, n=300, kv="f16"):
        """The logits at some positions, of one forward pass by one thread."""
        if (n, kv) not in self._whole:
            batch = Batch()
            wanted = [i for i in range(n) if n == 300 or i in LATE]
            for i, token in enumerate(self.tokens[:n]):
                batch.add(token, i, [0], logits=i in wanted)
            rows = run(self.backend(1, kv), Cells(2500), batch)
            self._whole[n, kv] = dict(zip(wanted, rows, strict=True))
        return np.stack([self._whole[n, kv][i] for i in where])


LATE = [255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1097, 1098, 1099]


@pytest.fixture(scope="module")
def real(smollm2_path):
    found = Real(smollm2_path)
    yield found
    for backend in found.backends.values():
        backend.close()


CHUNKS = {"whole": [300], "64": [64], "7": [7], "random": random_sizes(300, 90)}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("kv", "chunks"), [("f16", name) for name in CHUNKS] + [("q8", "64"), ("q8", "random")]
)
def test_chunked_prefill(real, kv, chunks):
    same(in_chunks(real.backend(kv=kv), real.tokens[:300], CHUNKS[chunks]), real.rows(range(300), kv=kv))


def test_prefill_one_by_one(real):
    backend, cells = real.backend(), Cells(2500)
    run(backend, cells, text_batch(real.tokens[:240]))
    found = [run(backend, cells, text_batch(real.tokens[i : i + 1], i)) for i in range(240, 300)]
    same(np.concatenate(found), real.rows(range(240, 300)))
    same(in_chunks(backend, real.tokens[:20], [1]), real.rows(range(20)))


@pytest.mark.slow
def test_each_kernel_set(real, kernels, monkeypatch):
    """Few and many columns are computed in different ways."""
    text = real.tokens[:33]
    one = NativeBackend(real.file, real.spec, 64, 1)
    assert one.kernels == kernels
    whole = in_chunks(one, text, [33])
    same(in_chunks(one, text, [1, 13, 2, 17]), whole)
    same(in_chunks(NativeBackend(real.file, real.spec, 64, 3), text, [16, 14, 3]), whole)
    if vectors := {"amx": "avx512", "i8mm": "neon"}.get(kernels):  # matrix units do exactly what vectors do
        monkeypatch.setenv("STRETTO_KERNELS", vectors)
        same(in_chunks(NativeBackend(real.file, real.spec, 64, 1), text, [33]), whole)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(real, threads):
    backend, cells = real.backend(threads), Cells(2500)
    same(in_chunks(backend, real.tokens[:300], [299, 1], cells), real.rows(range(300)))


@pytest.mark.parametrize("n", [2, 7, 16])
@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_batches(real, kv, n):
    # One text beside n − 1 others of different lengths: a mixed prefill, then decoding together.
    backend, cells, batch = real.backend(kv=kv), Cells(2500), Batch()
    for other in range(1, n):
        batch.extend(real.tokens[other * 5 : other * 5 + 3 + 2 * other], 0, [other], logits=True)
    batch.extend(real.tokens[:40], 0, [0], logits=True)
    same(run(backend, cells, batch)[-1:], real.rows([39], kv=kv))
    for position in range(40, 44):
        batch = Batch()
        batch.add(real.tokens[position], position, [0], logits=True)
        for other in range(1, n):
            batch.add(real.tokens[position + other], cells.end(other), [other], logits=True)
        same(run(backend, cells, batch)[:1], real.rows([position], kv=kv))


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_a_long_context(real, kv):
    # Alone, a step's spans are shared out among the threads; beside 15 others they are not.
    backend, cells = real.backend(kv=kv), Cells(2500)
    in_chunks_wanting_nothing(backend, cells, real.tokens[:511])
    for position in (511, 512, 513):
        found = run(backend, cells, text_batch([real.tokens[position]], position))
        same(found, real.rows([position], 1100, kv))
    in_chunks_wanting_nothing(backend, cells, real.tokens[:1023], 514)
    same(run(backend, cells, text_batch(real.tokens[1023:1025], 1023)), real.rows([1023, 1024], 1100, kv))
    batch = Batch()
    for other in range(1, 16):
        batch.extend(real.tokens[other : other + 4 * other], 0, [other])
    batch.add(real.tokens[1025], 1025, [0], logits=True)
    same(run(backend, cells, batch), real.rows([1025], 1100, kv))
    in_chunks_wanting_nothing(backend, cells, real.tokens[:1097], 1026)
    batch = Batch()
    for other in range(1, 16):
        batch.add(7, cells.end(other), [other], logits=True)
    batch.add(real.tokens[1097], 1097, [0], logits=True)
    same(run(backend, cells, batch)[-1:], real.rows([1097], 1100, kv))
    same(run(backend, cells, text_batch(real.tokens[1098:], 1098)), real.rows([1098, 1099], 1100, kv))


def in_chunks_wanting_nothing(backend, cells, tokens, start=0):
    for first in range(start, len(tokens), 200):
        batch = Batch()
        batch.extend(tokens[first : first + 200], first, [0])
        assert run(backend, cells, batch).shape[0] == 0


@pytest.mark.parametrize("kv", ["f16", "q8"])
def test_a_shared_prefix_and_forks(real, kv):
    backend, cells = real.backend(kv=kv), Cells(2500)
    run(backend, cells, text_batch(real.tokens[:120]))
    for fork in (1, 2, 3):
        assert cells.copy(0, fork, 0, 100 + fork) == 100 + fork
    cells.remove(0)  # parked by now; the forks keep what they share
    # Fork 1 goes on as the text does, 2 and 3 go other ways, all in one batch.
    batch = Batch()
    batch.extend([9, 8, 7], 102, [2], logits=True)
    for i in range(101, 110):
        batch.add(real.tokens[i], i, [1], logits=True)
    batch.extend([5] * 30, 103, [3], logits=True)
    found = run(backend, cells, batch)
    same(found[1:10], real.rows(range(101, 110), kv=kv))
    same(found[0], text_logits(real.backend(1, kv), [*real.tokens[:102], 9, 8, 7])[-1])
    same(found[10], text_logits(real.backend(1, kv), [*real.tokens[:103], *[5] * 30])[-1])
    # A fork of the fork, made in the middle of decoding.
    cells.copy(1, 4)
    batch = Batch()
    for sequence in (4, 1):
        batch.add(real.tokens[110], 110, [sequence], logits=True)
    found = run(backend, cells, batch)
    same(found, real.rows([110, 110], kv=kv))


def test_a_hole_in_the_positions(real):
    # Made before anything behind it was computed, however it was made.
    text, backend = real.tokens, real.backend()
    batch = Batch()
    batch.extend(text[:50], 0, [0])
    for i in range(80, 90):
        batch.add(text[i], i, [0], logits=True)
    whole = run(real.backend(1), Cells(2500), batch)
    cells = Cells(2500)
    run(backend, cells, text_batch(text[:80]))
    assert cells.remove(0, 50, 80) == 30
    run(backend, cells, text_batch(text[:60], 0, [1]))  # others take the cells that became free
    found = [run(backend, cells, text_batch(text[i : i + 1], i)) for i in range(80, 90)]
    same(np.concatenate(found), whole)
    # Removed behind what is kept: the prefix goes on as if nothing had been there.
    cells.remove(1, 40)
    same(run(backend, cells, text_batch(text[40:45], 40, [1])), real.rows(range(40, 45)))


def test_several_tokens_at_one_position(real):
    backend, cells, text = real.backend(), Cells(2500), real.tokens
    run(backend, cells, text_batch(text[:60]))
    batch = Batch()
    for member, token in enumerate([text[60], 11, 12], start=1):
        cells.copy(0, member)
        batch.add(token, 60, [member], logits=True)
    found = run(backend, cells, batch)
    same(found[:1], real.rows([60]))
    same(found[1], text_logits(real.backend(1), [*text[:60], 11])[-1])


# -- through the facade --

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def add(a, b):",
    "A list of fruits: apples,",
    "Water boils at a temperature of",
]


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with stretto.load(smollm2_path, cells=2048) as found:
        yield found


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.8, "seed": 1 << 40, "top_k": 0}],
    ids=["greedy", "seeded", "all tokens"],
)
def test_generating_alone_in_a_list_and_streamed(llm, options):
    options = {"max_tokens": 8, "ignore_eos": True, "logprobs": 2, **options}
    alone = [llm.generate(prompt, **options) for prompt in PROMPTS]
    assert all(len(result.tokens) == 8 for result in alone)
    for result, listed in zip(alone, llm.generate(PROMPTS, **options), strict=True):
        assert listed.tokens == result.tokens
        assert listed.text == result.text
        assert listed.logprobs == result.logprobs
    stream = llm.stream(PROMPTS[1], **options)
    pieces = list(stream)
    assert [token.id for token in pieces] == alone[1].tokens
    assert "".join(token.text for token in pieces) == alone[1].text
    assert stream.result.logprobs == alone[1].logprobs
    assert llm.cache.stats().held == 0


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
def test_the_fused_loop_is_the_python_loop(llm, options):
    options = {"max_tokens": 8, "ignore_eos": True, **options}
    by_python, fused = (
        [llm.generate(prompt, loop=loop, **options).tokens for prompt in PROMPTS]
        for loop in ("python", "fused")
    )
    assert fused == by_python
    assert [result.tokens for result in llm.generate(PROMPTS, loop="auto", **options)] == by_python


def test_streams_that_take_turns(llm):
    options = {"max_tokens": 10, "seed": 3, "ignore_eos": True}
    alone = [llm.generate(prompt, **options).tokens for prompt in PROMPTS[:3]]
    streams = [llm.stream(prompt, **options) for prompt in PROMPTS[:3]]
    found = [[], [], []]
    for _ in range(10):
        for tokens, stream in zip(found, streams, strict=True):
            tokens.append(next(stream).id)
    for stream in streams:
        stream.cancel()
    assert found == alone


def test_sequences_forks_and_steps(llm):
    ids = llm.tokenizer.encode(PROMPTS[0] + " Paris. The capital of Italy is")
    with llm.sequence(ids) as whole:
        expected = whole.logits.copy()
    with llm.sequence(ids[:4]) as grown, llm.sequence(PROMPTS[1]) as other:
        twin = grown.fork()
        for token in ids[4:]:
            twin.append(token)
            llm.step([other], temperature=0)
            same(twin.logits.shape, expected.shape)
        same(twin.logits, expected)
        grown.append([1, 2, 3])
        assert (grown.logits != expected).any()
        grown.truncate(4)
        grown.append(ids[4:])
        llm.step([other, grown], temperature=0)
        same(grown.fork().tokens[: len(ids)], ids)
        grown.truncate(len(ids))
        same(grown.logits, expected)
        twin.close()
    llm.cells.clear()


def test_threads_and_layouts_do_not_show(smollm2_path, llm):
    options = {"max_tokens": 8, "seed": 5, "ignore_eos": True}
    expected = [result.tokens for result in llm.generate(PROMPTS, **options)]
    scores = llm.score(PROMPTS[0] * 4)
    for changes in ({"threads": 1}, {"threads": 3, "repack": False}):
        with stretto.load(smollm2_path, cells=512, **changes) as other:
            assert [result.tokens for result in other.generate(PROMPTS, **options)] == expected
            same(other.score(PROMPTS[0] * 4), scores)


# -- and no less exact than others --


# The set without vector instructions needs ten times as long as the others.
EACH_KERNELS = [pytest.param(name, marks=[pytest.mark.slow] * (name == "portable")) for name in KERNELS]


def distance_to_exact(path, golden):
    """The mean over all texts of how far our log-probabilities are from the exact ones."""
    with stretto.load(path, cells=192) as llm:
        texts = golden["score"].values()
        return np.concatenate([np.abs(llm.score(text["ids"]) - text["logprobs"]) for text in texts]).mean()


@pytest.mark.golden
@pytest.mark.parametrize("kernels", EACH_KERNELS)
def test_no_less_exact_than_llamacpp(monkeypatch, smollm2_path, kernels):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    golden = json.loads((GOLDEN / STORED["smollm2"]).read_text())
    theirs = golden["overall"]["llamacpp_mean_abs_difference"]
    assert theirs == pytest.approx(0.057, abs=5e-4)
    assert distance_to_exact(smollm2_path, golden) <= 1.1 * theirs


@pytest.mark.golden
def test_no_less_exact_than_llamacpp_with_gemma(gemma3_path):
    golden = json.loads((GOLDEN / STORED["gemma3"]).read_text())
    theirs = golden["overall"]["llamacpp_mean_abs_difference"]
    assert theirs == pytest.approx(0.073, abs=5e-4)
    assert distance_to_exact(gemma3_path, golden) <= 1.1 * theirs
