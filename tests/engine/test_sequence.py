"""Sequences in the caller's hands."""

import numpy as np
import pytest

from stretto import Batch
from stretto.errors import CacheFull, ContextOverflow, InvalidRequest
from stretto.testing import END, byte_tokenizer, mock_llm

END_ID = byte_tokenizer().specials[END]
GREEDY = {"temperature": 0}


def test_steps_to_the_end():
    llm = mock_llm("Hi")
    seq = llm.sequence("p")
    steps = [seq.step(**GREEDY) for _ in range(3)]
    assert [(s.token, s.text, s.is_end) for s in steps] == [
        (ord("H"), "H", False),
        (ord("i"), "i", False),
        (END_ID, "", True),
    ]
    assert seq.text == "pHi"  # the end token is not appended
    assert seq.tokens == list(b"pHi")
    assert (seq.positions, seq.position, len(seq)) == ([0, 1, 2], 3, 3)


def test_tokens_are_computed_when_asked_for():
    llm = mock_llm("Hi")
    seq = llm.sequence("abc")
    seq.append("de")
    seq.append(ord("f"))
    seq.append([ord("g")])
    assert llm.backend.batches == []
    assert seq.n_pending == 7
    seq.logits  # noqa: B018
    assert llm.backend.batches == [list(b"abcdefg")]
    seq.logits  # noqa: B018
    assert len(llm.backend.batches) == 1


def test_logits_are_writable_and_sampled_as_they_are():
    seq = mock_llm("Hi").sequence("p")
    assert seq.logits.shape == (258,)
    assert seq.logits.dtype == np.float32
    seq.logits[:] = -np.inf
    seq.logits[ord("Q")] = 0
    assert seq.sample() == ord("Q")
    assert seq.sample(logits=np.eye(258)[7] * 9, temperature=0) == 7
    assert seq.step().text == "Q"


def test_logits_stay_while_others_move():
    llm = mock_llm("Hi")
    first, second = llm.sequence("a"), llm.sequence("b")
    row = first.logits
    row[5] = 77
    second.step(**GREEDY)
    assert row is first.logits
    assert first.logits[5] == 77


def test_forks_share_cells_and_go_their_own_ways():
    llm = mock_llm("Hi")
    seq = llm.sequence("x" * 100)
    seq.logits  # noqa: B018
    forks = [seq.fork() for _ in range(10)]
    assert llm.cache.stats().held == 100
    steps = llm.step([seq, *forks], **GREEDY)
    assert [step.text for step in steps] == ["H"] * 11
    steps = llm.step([seq, *forks], **GREEDY)
    assert llm.backend.batches[1:] == [[ord("H")] * 11]  # one forward pass for all
    assert llm.cache.stats().held == 111
    for fork in forks:
        fork.close()
    assert llm.cache.stats().held == 101
    assert seq.text == "x" * 100 + "Hi"
    llm.cells.check()


def test_a_fork_has_the_same_logits_and_edits_its_own():
    seq = mock_llm("Hi").sequence("p")
    seq.logits[3] = 42
    fork = seq.fork()
    assert fork.logits[3] == 42
    fork.logits[3] = 1
    assert seq.logits[3] == 42


def test_a_fork_with_pending_tokens():
    llm = mock_llm("Hi")
    seq = llm.sequence("ab")
    fork = seq.fork()
    fork.append("c")
    assert (seq.text, fork.text) == ("ab", "abc")
    assert [s.text for s in llm.step([seq, fork], **GREEDY)] == ["H", "H"]


def flat(seen):
    return np.zeros(258, np.float32)


OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def test_a_fork_continues_the_random_stream_unless_seeded():
    seq = mock_llm(flat).sequence("p", seed=3)
    seq.step(**OPEN)
    fork, seeded = seq.fork(), seq.fork(seed=8)
    ours = [seq.sample(**OPEN) for _ in range(8)]
    assert [fork.sample(**OPEN) for _ in range(8)] == ours
    assert [seeded.sample(**OPEN) for _ in range(8)] != ours


def test_truncate_and_go_on():
    llm = mock_llm(lambda seen: ord("0") + len(seen))
    seq = llm.sequence("abcdef")
    assert seq.step(**GREEDY).text == "6"
    seq.truncate(3)
    assert (seq.text, seq.positions, llm.cache.stats().held) == ("abc", [0, 1, 2], 3)
    assert seq.step(**GREEDY).text == "3"  # computed again: what follows three tokens
    assert seq.text == "abc3"
    seq.truncate(100)
    assert seq.text == "abc3"
    seq.truncate(0)
    assert (seq.text, seq.position, llm.cache.stats().held) == ("", 0, 0)
    with pytest.raises(InvalidRequest, match="empty sequence has no logits"):
        seq.logits  # noqa: B018


def test_remove_leaves_a_hole():
    llm = mock_llm("Hi")
    seq = llm.sequence("abcdef")
    seq.logits  # noqa: B018
    seq.remove(1, 3)
    assert (seq.text, seq.positions, seq.position) == ("adef", [0, 3, 4, 5], 6)
    seq.append("g")
    seq.logits  # noqa: B018
    assert seq.positions == [0, 3, 4, 5, 6]
    assert llm.cache.stats().held == 5


def test_remove_with_close_moves_the_rest_down():
    llm = mock_llm("Hi")
    seq = llm.sequence("abcdef")
    seq.logits  # noqa: B018
    fork = seq.fork()
    seq.remove(1, 3, close=True)
    assert (seq.text, seq.positions, seq.position) == ("adef", [0, 1, 2, 3], 4)
    assert (fork.text, fork.positions) == ("abcdef", [0, 1, 2, 3, 4, 5])  # shared cells were copied first
    llm.cells.check()
    assert seq.step(**GREEDY).text == "H"


def test_removing_before_pending_tokens_keeps_their_places():
    seq = mock_llm("Hi").sequence("abc")
    seq.logits  # noqa: B018
    seq.append("de")
    seq.remove(0, 2)
    assert (seq.text, seq.positions) == ("cde", [2, 3, 4])
    seq.append("fg")
    seq.remove(6, 7)
    assert (seq.text, seq.position) == ("cdef", 6)


def test_logits_after_an_edit_are_recomputed_at_the_same_place():
    llm = mock_llm(lambda seen: ord("0") + len(seen))
    seq = llm.sequence("abcdef")
    seq.logits  # noqa: B018
    seq.remove(1, 3)
    assert seq.logits[ord("4")] > 1
    assert seq.positions == [0, 3, 4, 5]
    assert llm.backend.batches[-1] == [ord("f")]  # one token, not the whole


def test_close_frees_and_ends():
    llm = mock_llm("Hi")
    with llm.sequence("abc") as seq:
        seq.logits  # noqa: B018
        assert llm.cache.stats().held == 3
    assert llm.cache.stats().held == 0
    seq.close()
    for use in (seq.step, seq.fork, lambda: seq.append("x"), lambda: seq.remove(0, 1), lambda: seq.logits):
        with pytest.raises(InvalidRequest, match="closed"):
            use()
    assert "closed" in repr(seq)


def test_half_characters_wait():
    seq = mock_llm("é").sequence("p")
    assert [seq.step(**GREEDY).text, seq.step(**GREEDY).text] == ["", "é"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda seq: seq.append(258),
        lambda seq: seq.append(-1),
        lambda seq: seq.append([1.5]),
        lambda seq: seq.append(None),
        lambda seq: seq.append(True),
        lambda seq: seq.append("\ud800"),
        lambda seq: seq.remove(2, 1),
        lambda seq: seq.remove(-1, 1),
        lambda seq: seq.remove(0, None),
        lambda seq: seq.remove(0.0, 1),
        lambda seq: seq.truncate(-1),
        lambda seq: seq.truncate(True),
        lambda seq: seq.sample(temperature=-1),
        lambda seq: seq.sample(temp=1),
        lambda seq: seq.sample(logits=[1.0]),
        lambda seq: seq.step(max_tokens=3),
        lambda seq: seq.fork(seed=-1),
    ],
)
def test_wrong_arguments_change_nothing(wrong):
    seq = mock_llm("Hi").sequence("abc")
    seq.logits  # noqa: B018
    with pytest.raises(InvalidRequest):
        wrong(seq)
    assert (seq.text, seq.positions) == ("abc", [0, 1, 2])
    assert seq.step(**GREEDY).text == "H"


def test_the_context_is_a_limit():
    seq = mock_llm("Hi", context_length=4).sequence("abc")
    with pytest.raises(ContextOverflow, match="2 tokens at position 3 do not fit into a context of 4"):
        seq.append("de")
    seq.append("d")
    assert seq.logits.shape == (258,)


def test_a_full_cache_changes_nothing():
    llm = mock_llm("Hi", cells=8)
    first, second = llm.sequence("abcde"), llm.sequence("fghi")
    first.logits  # noqa: B018
    with pytest.raises(CacheFull, match="4 cells are needed and 3 of 8 are free"):
        second.logits  # noqa: B018
    assert (second.text, second.n_pending, llm.cache.stats().held) == ("fghi", 4, 5)
    first.close()
    assert second.step(**GREEDY).text == "H"


def test_foreign_and_repeated_sequences():
    llm, other = mock_llm("Hi"), mock_llm("Hi")
    seq = llm.sequence("a")
    with pytest.raises(InvalidRequest, match="not a sequence of this model"):
        llm.step([other.sequence("a")])
    with pytest.raises(InvalidRequest, match="not a sequence of this model"):
        llm.step([5])
    with pytest.raises(InvalidRequest, match="twice; fork it"):
        llm.step([seq, seq])
    assert llm.step([]) == []


def test_score():
    def script(seen):
        row = np.zeros(258, np.float32)
        row[seen[-1] + 1] = 3.0
        return row

    llm = mock_llm(script)
    scores = llm.score("abcx")
    high = 3 - np.log(np.exp(3) + 257)
    assert scores.dtype == np.float32
    assert scores == pytest.approx([high, high, high - 3], abs=1e-5)
    assert llm.cache.stats().held == 0
    assert llm.score(list(b"ab" * 512)).shape == (1023,)
    with pytest.raises(ContextOverflow, match="the text has 1026 tokens and the context 1024; shorten it"):
        llm.score(list(b"ab" * 513))
    for wrong in ("a", [], [1, 999], None):
        with pytest.raises(InvalidRequest):
            llm.score(wrong)


def test_forward_runs_a_batch_of_ones_own():
    llm = mock_llm(lambda seen: len(seen))
    batch = Batch()
    for i, token in enumerate(b"abc"):
        batch.add(token, i, [1000], logits=i > 0)
    rows = llm.forward(batch)
    assert rows.argmax(axis=1).tolist() == [2, 3]
    llm.cells.copy(1000, 1001)
    second = Batch()
    second.extend(b"de", 3, [1001], logits=True)
    assert llm.forward(second).argmax(axis=1).tolist() == [5]
    assert llm.cells.view(1000).tolist() == llm.cells.view(1001).tolist()[:3]
    with pytest.raises(InvalidRequest, match="run already"):
        llm.forward(second)
    llm.cells.keep(1001)
    assert llm.cache.stats().held == 5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: None, "the batch is empty"),
        (lambda b: b.add(258, 0, [0]), "row 0: token 258 is not in the vocabulary"),
        (lambda b: b.add(1, -1, [0]), "positions must lie from 0 to 1023"),
        (lambda b: b.add(1, 5000, [0]), "positions must lie from 0 to 1023"),
        (lambda b: b.add(1, 0, []), "at least one sequence"),
        (lambda b: b.add(1, 0, [-1]), "sequence id"),
        (lambda b: b.add(1.5, 0, [0]), "token must be an integer"),
        (lambda b: b.add(1, "0", [0]), "position must be an integer"),
        (lambda b: b.add_vector([1.0, np.nan], 0, [0]), "row 0: a vector of 2 finite numbers"),
        (lambda b: b.add_vector([1.0], 0, [0]), "row 0: a vector of 2 finite numbers"),
    ],
)
def test_bad_batches(build, message):
    llm = mock_llm("Hi")
    batch = Batch()

    def build_and_run():
        build(batch)
        llm.forward(batch)

    with pytest.raises(InvalidRequest, match=message):
        build_and_run()
    assert llm.cache.stats().held == 0
    with pytest.raises(InvalidRequest, match=r"takes a stretto\.Batch, not list"):
        llm.forward([1])


def test_a_failing_backend_leaves_no_cells():
    llm = mock_llm("Hi")

    def fail(batch):
        raise MemoryError

    llm.backend.forward = fail
    seq = llm.sequence("abc")
    with pytest.raises(MemoryError):
        seq.logits  # noqa: B018
    assert llm.cache.stats().held == 0
    assert seq.n_pending == 3


def test_cells_by_hand():
    llm = mock_llm("Hi")
    seq, other = llm.sequence("abc"), llm.sequence("x")
    seq.logits, other.logits  # noqa: B018
    llm.cells.remove(seq.id, 1, 2)
    assert llm.cells.view(seq.id).tolist() == [0, 2]
    llm.cells.clear()
    assert llm.cache.stats().held == 0


@pytest.mark.parametrize("method", ["step", "logits"])
def test_one_sequence_in_place_of_a_list_is_named(method):
    llm = mock_llm("abc")
    with pytest.raises(InvalidRequest, match=r"write \[seq\]"):
        getattr(llm, method)(llm.sequence("x"))
