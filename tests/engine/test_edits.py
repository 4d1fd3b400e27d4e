"""Edits by mode: "recompute" is a fresh sequence, "shift" is cells that move, "heal" is both, forks stay."""

import numpy as np
import pytest

from recurrent_mock import chain, check, recurrent_llm, row_of
from stretto import Batch, Edit
from stretto.backends.base import Capabilities
from stretto.backends.native import NativeBackend
from stretto.engine import editing
from stretto.engine.sequence import begin_edit, finish_edit
from stretto.errors import CacheFull, ContextOverflow, InvalidRequest, Unsupported
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec

MODES = ["recompute", "shift", "heal"]
NEXT, LAST = 6, 10  # what is healed here, in the place of HEAL_NEXT_TOKENS and HEAL_LAST_TOKENS
A, B = 40, 60  # the cut
TEXT = np.random.default_rng(3).integers(0, 90, B + NEXT + 20 + LAST).tolist()
NEW = [7, 8, 9, 10, 11]


@pytest.fixture(autouse=True)
def heal_few(monkeypatch):
    monkeypatch.setattr(editing, "HEAL_NEXT_TOKENS", NEXT)
    monkeypatch.setattr(editing, "HEAL_LAST_TOKENS", LAST)


@pytest.fixture(scope="module", params=["llama", "gemma3"])  # gemma3 has layers with a window
def tiny(request):
    name = request.param
    with LLM(NativeBackend(tiny_file(name), tiny_spec(name, 1024), 1024, 1), byte_tokenizer()) as llm:
        yield llm


@pytest.fixture
def llm(tiny):
    tiny.cells.clear()
    yield tiny
    tiny.cells.check()


def computed(llm, tokens=TEXT):
    """A sequence with all its cells, computed and not taken from a cache."""
    seq = llm.sequence(tokens)
    llm.logits([seq])
    return seq


def fresh_logits(llm, tokens):
    """The logits behind tokens that nothing is cached of."""
    llm.cache.clear()
    with llm.sequence(tokens, cache_salt="fresh") as seq:
        return seq.logits.copy()


EDITS = {
    "remove": (lambda seq, mode: seq.remove(A, B, mode=mode), TEXT[:A] + TEXT[B:]),
    "replace": (lambda seq, mode: seq.replace(A, B, NEW, mode=mode), TEXT[:A] + NEW + TEXT[B:]),
    "insert": (lambda seq, mode: seq.insert(A, NEW, mode=mode), TEXT[:A] + NEW + TEXT[A:]),
    "insert at 0": (lambda seq, mode: seq.insert(0, NEW, mode=mode), NEW + TEXT),
    "replace by as many": (
        lambda seq, mode: seq.replace(A, A + 5, NEW, mode=mode),
        TEXT[:A] + NEW + TEXT[A + 5 :],
    ),
    "the end": (lambda seq, mode: seq.replace(A, len(TEXT), NEW, mode=mode), TEXT[:A] + NEW),
    "all": (lambda seq, mode: seq.replace(0, len(TEXT), NEW, mode=mode), NEW),
}


@pytest.mark.parametrize("name", EDITS)
def test_recomputing_gives_the_bits_of_a_fresh_sequence(llm, name):
    edit, expected = EDITS[name]
    seq = computed(llm)
    found = edit(seq, "recompute")
    assert (seq.tokens, seq.positions) == (expected, list(range(len(expected))))
    assert (found.mode, found.asked, found.exact, found.reason) == ("recompute", "recompute", True, "")
    assert found.kept + found.recomputed + found.added == len(expected)
    assert np.array_equal(seq.logits, fresh_logits(llm, expected))


def test_recomputing_makes_up_for_earlier_edits(llm):
    seq = computed(llm)
    seq.remove(10, 20)  # a hole
    seq.remove(40, 50, mode="shift")
    left = seq.tokens
    assert not np.array_equal(seq.logits, fresh_logits(llm, left))
    found = seq.replace(60, 64, NEW, mode="recompute")
    assert (found.kept, found.exact) == (10, True)
    assert seq.positions == list(range(len(seq)))
    assert np.array_equal(seq.logits, fresh_logits(llm, seq.tokens))


def test_shifting_is_a_removal_that_closes_the_hole(llm):
    closed, shifted, by_hand = computed(llm), computed(llm), computed(llm)
    assert closed.remove(A, B, close=True) == shifted.remove(A, B, mode="shift")
    by_hand.remove(A, B)
    by_hand.shift(B, by=A - B)
    assert np.array_equal(closed.logits, by_hand.logits)
    assert np.array_equal(closed.logits, shifted.logits)
    assert not np.array_equal(shifted.logits, fresh_logits(llm, shifted.tokens))


@pytest.mark.parametrize("stop", [A, A + len(NEW), B])
def test_shifting_computes_just_the_new_tokens(llm, stop):
    seq, by_hand = computed(llm), computed(llm)
    before = llm.metrics.prompt_tokens
    found = seq.replace(A, stop, NEW, mode="shift")
    assert llm.metrics.prompt_tokens - before == len(NEW)
    moved = 0 if stop == A + len(NEW) else len(TEXT) - stop
    n_kept = len(TEXT) - (stop - A)
    assert found == Edit("shift", "shift", len(NEW), stop - A, n_kept, moved, 0, False)
    by_hand.remove(A, stop)
    by_hand.shift(stop, by=A + len(NEW) - stop)
    batch = Batch()
    for position, token in enumerate(NEW, A):
        batch.add(token, position, (by_hand.id,))
    llm.forward(batch)
    assert seq.tokens == by_hand.tokens == TEXT[:A] + NEW + TEXT[stop:]
    assert seq.positions == list(range(len(seq)))
    assert np.array_equal(seq.logits, by_hand.logits)


@pytest.mark.parametrize("mode", ["shift", "heal"])
def test_new_tokens_that_are_computed_already_are_shared(llm, mode):
    by_hand, seq = computed(llm), computed(llm)
    by_hand.replace(A, B, NEW, mode=mode)
    expected = by_hand.logits.copy()
    by_hand.close(park=False)
    fork = seq.fork()
    fork.truncate(A)
    fork.append(NEW)
    fork.logits  # noqa: B018
    before = llm.metrics.prompt_tokens
    seq.replace(A, B, NEW, mode=mode)
    assert llm.metrics.prompt_tokens - before == (NEXT if mode == "heal" else 0)  # the last one is decoded
    assert np.array_equal(seq.logits, expected)


@pytest.mark.parametrize("before", ["exact", "edited", "hole", "pending"])
@pytest.mark.parametrize("mode", ["shift", "heal"])
def test_an_edit_that_was_begun_has_the_bits_of_one_that_was_not(llm, mode, before):
    def prepared():
        seq = computed(llm)
        if before == "pending":
            seq.append([4, 5])
        elif before != "exact":
            seq.remove(5, 10, mode="shift" if before == "edited" else None)
        return seq

    by_hand, seq = prepared(), prepared()
    by_hand.replace(A, B, NEW, mode=mode)
    expected = by_hand.logits.copy()
    by_hand.close(park=False)
    ahead = begin_edit(seq, A, B, NEW, mode)
    llm.logits([ahead])
    assert finish_edit(seq, A, B, NEW, mode, ahead).added == len(NEW)
    assert np.array_equal(seq.logits, expected)
    assert ahead.closed
    assert begin_edit(seq, A, B, NEW, "recompute") is None
    assert begin_edit(seq, A, B, [], mode) is None


def test_healing_computes_the_tokens_next_to_the_cut_and_the_last(llm):
    seq, by_hand = computed(llm), computed(llm)
    found = seq.replace(A, B, NEW, mode="heal")
    n_moved = len(TEXT) - B - (NEXT + LAST)
    assert found == Edit("heal", "heal", len(NEW), B - A, A + n_moved, n_moved, (NEXT + LAST), False)
    assert seq.n_pending == LAST
    near, last = TEXT[B : B + NEXT], TEXT[-LAST:]
    by_hand.replace(A, B + len(near), NEW + near, mode="shift")
    by_hand.truncate(len(by_hand) - len(last))
    by_hand.append(last)
    assert seq.tokens == by_hand.tokens == TEXT[:A] + NEW + TEXT[B:]
    assert np.array_equal(seq.logits, by_hand.logits)
    assert not np.array_equal(seq.logits, fresh_logits(llm, seq.tokens))


def test_healing_all_there_is_is_recomputing(llm):
    seq = computed(llm, TEXT[: B + NEXT + LAST])
    found = seq.remove(A, B, mode="heal")
    assert (found.mode, found.asked, found.exact) == ("recompute", "heal", True)
    assert "so few tokens" in found.reason
    assert np.array_equal(seq.logits, fresh_logits(llm, seq.tokens))


@pytest.mark.parametrize("mode", MODES)
def test_forks_stay_as_they_are(llm, mode):
    seq = computed(llm)
    fork = seq.fork()
    seq.replace(A, B, NEW, mode=mode)
    seq.logits  # noqa: B018
    assert (fork.tokens, fork.positions) == (TEXT, list(range(len(TEXT))))
    fork.append(5)
    assert np.array_equal(fork.logits, fresh_logits(llm, [*TEXT, 5]))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_parked_is_exact(llm, mode):
    seq = computed(llm)
    seq.replace(A, B, NEW, mode=mode)
    seq.append([1, 2, 3])
    seq.logits  # noqa: B018
    tokens = seq.tokens
    n_exact = {"recompute": len(tokens) - 1, "shift": A + len(NEW), "heal": A + len(NEW) + NEXT}[mode]
    others = [llm.sequence([*tokens, 4])]  # shares with it while it is open,
    llm.logits(others)
    n_shared = [others[0].n_cached]
    others[0].close(park=False)
    seq.close()  # and parked
    others.append(llm.sequence(tokens))
    n_shared.append(others[1].logits is not None and others[1].n_cached)
    assert n_shared == [n_exact + (mode == "recompute"), n_exact]
    assert np.array_equal(others[1].logits, fresh_logits(llm, tokens))


@pytest.mark.parametrize("mode", ["shift", "heal"])
def test_new_tokens_behind_a_hole_are_shared_with_nobody(llm, mode):
    seq = computed(llm)
    seq.remove(20, 30)
    seq.insert(30, NEW, mode=mode)
    assert seq.positions == [*range(20), *range(30, len(TEXT) + len(NEW))]
    tokens = seq.tokens
    seq.close()
    again = llm.sequence(tokens)
    again.logits  # noqa: B018
    assert again.n_cached == 20


@pytest.mark.parametrize("mode", MODES)
def test_tokens_that_are_pending_stay_so(llm, mode):
    seq = computed(llm)
    seq.append([1, 2, 3])
    found = seq.replace(A, B, NEW, mode=mode)
    assert seq.n_pending >= 3
    assert seq.tokens == TEXT[:A] + NEW + TEXT[B:] + [1, 2, 3]
    assert seq.positions == list(range(len(seq)))
    assert found.kept + found.recomputed == len(TEXT) - (B - A)


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_of_pending_tokens_only_computes_nothing(llm, mode):
    seq = llm.sequence(TEXT)
    found = seq.replace(A, B, NEW, mode=mode)
    assert (found.mode, found.kept, found.recomputed, found.exact) == ("recompute", 0, 0, True)
    assert seq.n_pending == len(seq)
    assert np.array_equal(seq.logits, fresh_logits(llm, seq.tokens))


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_of_nothing_changes_nothing(llm, mode):
    seq = computed(llm)
    before = seq.logits.copy()
    assert seq.remove(A, A, mode=mode) == Edit(
        mode,
        mode,
        0,
        0,
        len(TEXT) if mode != "recompute" else A,
        0,
        0 if mode != "recompute" else len(TEXT) - A,
        True,
    )
    assert np.array_equal(seq.logits, before)


def test_usage_names_the_mode(llm):
    def mode_of(seq):
        return llm.generate(seq, max_tokens=2, temperature=0, ignore_eos=True).usage.edit_mode

    seq = computed(llm)
    assert mode_of(seq) is None
    seq.remove(A, B, mode="recompute")
    assert mode_of(seq) is None
    seq.remove(A, B, mode="heal")
    assert mode_of(seq.fork()) == "heal"
    seq.remove(5, 10, mode="shift")
    assert mode_of(seq) == "shift"
    seq.remove(5, 10)
    assert mode_of(seq) == "hole"


# -- where tokens cannot be moved --


@pytest.mark.parametrize("mode", MODES)
def test_recurrent_layers_go_back_to_a_checkpoint(mode):
    with recurrent_llm() as llm:
        ids = list(b"The quick brown fox jumps over the lazy dog. " * 16)
        seq = llm.sequence(ids[:300])
        seq.logits  # noqa: B018
        seq.append(ids[300:])
        seq.logits  # noqa: B018
        found = seq.replace(600, 640, "xyz", mode=mode)
        expected = [*ids[:600], *b"xyz", *ids[640:]]
        assert (found.mode, found.asked, found.exact) == ("recompute", mode, True)
        assert 0 < found.kept <= 600
        assert found.kept + found.recomputed == len(ids) - 40
        assert ("delta net" in found.reason) == (mode != "recompute")
        assert seq.tokens == expected
        assert np.array_equal(seq.logits, row_of(chain(expected), llm.spec.n_vocab))
        check(llm)


def test_learned_positions_are_computed_again():
    name = "gpt2"
    with LLM(NativeBackend(tiny_file(name), tiny_spec(name, 256), 256, 1), byte_tokenizer()) as llm:
        tokens = TEXT[: llm.context_length - 1]
        seq = computed(llm, tokens)
        found = seq.remove(5, 9, mode="shift")
        assert (found.mode, found.kept, found.exact) == ("recompute", 5, True)
        assert "positions are learned" in found.reason
        assert np.array_equal(seq.logits, fresh_logits(llm, tokens[:5] + tokens[9:]))
        for change in (lambda: seq.remove(5, 9, close=True), lambda: seq.shift(5, by=1)):
            with pytest.raises(Unsupported, match="truncate the text"):
                change()


def test_a_backend_that_cannot_rotate_keys_computes_again():
    llm = mock_llm("Hi")
    llm.backend.capabilities = Capabilities(shift=False)
    seq = llm.sequence("abcdef")
    seq.logits  # noqa: B018
    found = seq.remove(1, 3, mode="shift")
    assert (found.mode, found.kept, found.recomputed, seq.text) == ("recompute", 1, 3, "adef")
    assert found.reason == "the mock backend cannot rotate keys of this model"


# -- what is refused --


def test_wrong_arguments_change_nothing():
    llm = mock_llm("Hi", context_length=64)
    seq = llm.sequence("x" * 60)
    seq.logits  # noqa: B018
    with pytest.raises(InvalidRequest, match="mode must be one of 'recompute', 'shift', 'heal', not 'fast'"):
        seq.replace(1, 2, "y", mode="fast")
    with pytest.raises(InvalidRequest, match="give one of them"):
        seq.remove(1, 2, close=True, mode="shift")
    with pytest.raises(InvalidRequest, match="next position is 60"):
        seq.insert(61, "y")
    with pytest.raises(InvalidRequest, match="start 5 lies behind stop 4"):
        seq.replace(5, 4, "y")
    with pytest.raises(InvalidRequest, match="at must be a position"):
        seq.insert(-1, "y")
    for mode in MODES:
        with pytest.raises(ContextOverflow, match="has 65"):
            seq.insert(3, "yyyyy", mode=mode)
    assert (seq.text, seq.n_pending) == ("x" * 60, 0)


def test_without_cells_for_the_new_tokens_nothing_changes():
    llm = mock_llm("Hi", cells=64, context_length=64)
    seq = llm.sequence("x" * 20)
    seq.logits  # noqa: B018
    fork = seq.fork()
    fork.append("y" * 40)
    llm.logits([fork])
    with pytest.raises(CacheFull):  # 3 new ones fit, and no copies of those that are shared
        seq.insert(3, "zzz", mode="shift")
    assert (seq.text, seq.n_pending, fork.text) == ("x" * 20, 0, "x" * 20 + "y" * 40)
    llm.cells.check()
    fork.close(park=False)
    assert seq.insert(3, "zzz", mode="shift").moved == 17
    assert seq.text == "xxxzzz" + "x" * 17


def test_a_move_that_fails_leaves_the_text_to_be_computed_again(monkeypatch):
    llm = mock_llm("Hi")
    seq = llm.sequence("abcdef")
    seq.logits  # noqa: B018

    def fail(cells, delta):
        raise MemoryError

    monkeypatch.setattr(llm.backend, "rotate_cells", fail)
    with pytest.raises(MemoryError):
        seq.replace(1, 3, "x", mode="shift")
    assert (seq.text, seq.positions, seq.n_pending) == ("abcdef", [0, 1, 2, 3, 4, 5], 5)
    llm.cells.check()
    assert seq.step(temperature=0).text == "H"


def test_usage_counts_what_a_sequence_had_computed():
    llm = mock_llm("Hi")
    seq = llm.sequence("x" * 20)
    seq.logits  # noqa: B018
    seq.append("ab")
    for n in (None, 2):
        found = llm.generate(seq.fork() if n is None else seq, n=n, temperature=0)
        usage = (found if n is None else found[0]).usage
        assert (usage.prompt_tokens, usage.cached_tokens) == (22, 22)
    usage = llm.generate(seq, temperature=0).usage
    assert (usage.prompt_tokens, usage.cached_tokens) == (22, 22)
    seq.append("cd")
    usage = llm.generate(seq, temperature=0).usage
    assert (usage.prompt_tokens, usage.cached_tokens) == (26, 24)
