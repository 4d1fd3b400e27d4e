"""Models with recurrent layers: whatever the path, the tokens are those of a computation from scratch."""

import asyncio
import contextlib

import numpy as np
import pytest

import stretto
from recurrent_mock import KIND, chain, check, greedy, recurrent_llm, row_of
from stretto import Batch, Limits
from stretto.errors import CacheFull, InvalidRequest, Unsupported

PROMPT = "The quick brown fox jumps over the lazy dog. " * 3  # a token is a byte here
IDS = list(PROMPT.encode())
GREEDY = {"temperature": 0, "ignore_eos": True}
SLOT = 16  # bytes


@pytest.fixture
def llm():
    with recurrent_llm() as llm:
        yield llm
        check(llm)


def computed(llm):
    """The tokens that went through the backend since the last call."""
    total = sum(len(tokens) for tokens in llm.backend.batches)
    llm.backend.batches.clear()
    return total


def held(llm):
    """The slots of sequences in use."""
    return llm.cache.stats().slots_held


# -- texts --


def test_a_text_is_that_of_the_chain(llm):
    assert llm.generate(PROMPT, max_tokens=30, **GREEDY).tokens == greedy(IDS, 30)
    assert held(llm) == 0


@pytest.mark.parametrize("tokens_per_step", [1, 7, 64, 512])
def test_chunks_change_nothing(tokens_per_step):
    with recurrent_llm(limits=Limits(max_tokens_per_step=tokens_per_step)) as llm:
        texts = llm.generate([PROMPT, PROMPT[:50] + "x", "z"], max_tokens=20, **GREEDY)
        assert [text.tokens for text in texts] == [
            greedy(IDS, 20),
            greedy([*IDS[:50], 120], 20),
            greedy([122], 20),
        ]
        check(llm)


def test_many_texts_at_once(llm):
    prompts = [PROMPT[:n] for n in range(5, 85, 5)]
    texts = llm.generate(prompts, max_tokens=15, **GREEDY)
    assert [text.tokens for text in texts] == [greedy(prompt.encode(), 15) for prompt in prompts]


def test_samples_share_the_prompt_and_part(llm):
    several = llm.generate(PROMPT, n=5, max_tokens=12, temperature=1.0, seed=3)
    assert computed(llm) <= len(IDS) + 5 * 12
    alone = recurrent_llm().generate(PROMPT, max_tokens=12, temperature=1.0, seed=3)
    assert several[0].tokens == alone.tokens
    assert len({tuple(text.tokens) for text in several}) > 1
    best = llm.generate(PROMPT, best_of=3, max_tokens=6, temperature=1.0, seed=3)
    assert len(best.tokens) == 6


def test_beams_are_the_same_with_a_cache_and_without(llm):
    first = llm.generate(PROMPT, beams=4, n=4, max_tokens=10)
    again = llm.generate(PROMPT, beams=4, n=4, max_tokens=10)
    scratch = recurrent_llm(prefix_cache=False).generate(PROMPT, beams=4, n=4, max_tokens=10)
    assert [text.tokens for text in first] == [text.tokens for text in again]
    assert [text.tokens for text in first] == [text.tokens for text in scratch]
    assert held(llm) == 0


@pytest.mark.parametrize("grammar", [None, stretto.Grammar.regex(r"[a-z]{5}: [0-9]{20}")])
def test_the_fused_loop_gives_the_same_tokens(llm, grammar):
    options = {"max_tokens": 80, "temperature": 0.7, "seed": 5, "grammar": grammar}
    fused = llm.generate(PROMPT, loop="fused", **options)
    assert fused.tokens == recurrent_llm().generate(PROMPT, loop="python", **options).tokens
    seq = llm.sequence(PROMPT)
    llm.generate(seq, loop="fused", max_tokens=20, **GREEDY)
    assert seq.tokens == IDS + greedy(IDS, 20)
    assert np.array_equal(seq.logits, row_of(chain(seq.tokens), 258))
    computed(llm)
    llm.generate(seq, loop="fused", max_tokens=40, stop=[chr(greedy(seq.tokens, 5)[-1])], **GREEDY)
    seq.step(temperature=0)
    assert computed(llm) <= 2  # what the loop computed stays, though it ended early


def test_drafts_change_nothing(llm):
    text = "abcabcabc " * 12
    ids = list(text.encode())
    plain = greedy(ids, 40)

    class Oracle:
        """Right for some tokens, wrong then."""

        most = 6

        def begin(self, tokenizer):
            return self

        def propose(self, tokens, most):
            right = greedy(tokens, most)
            n = len(tokens) % 5
            return [*right[:n], *(token ^ 1 for token in right[n:])][:most]

        def close(self):
            pass

    for draft in (Oracle(), "lookup"):
        result = llm.generate(text, max_tokens=40, draft=draft, **GREEDY)
        assert result.tokens == plain
        check(llm)
    assert llm.metrics.accepted_tokens > 0
    assert llm.metrics.drafted_tokens > llm.metrics.accepted_tokens
    seq = llm.sequence(text)
    llm.generate(seq, max_tokens=40, draft=Oracle(), **GREEDY)
    assert seq.tokens == ids + plain
    assert np.array_equal(seq.logits, row_of(chain(seq.tokens), 258))
    seq.close()
    assert held(llm) == 0


def test_a_rejected_draft_costs_the_draft_and_no_long_replay(llm):
    class Wrong:
        most = 2

        def begin(self, tokenizer):
            return self

        def propose(self, tokens, most):
            return [1] * most

        def close(self):
            pass

    llm.generate(PROMPT, max_tokens=30, draft=Wrong(), **GREEDY)
    drafted = llm.metrics.drafted_tokens
    assert drafted > 0
    assert computed(llm) == len(IDS) + 29 + drafted + drafted // 2  # the token before each draft again


def test_a_draft_model_with_recurrent_layers(llm):
    small = recurrent_llm()
    result = llm.generate(PROMPT, max_tokens=30, draft=stretto.DraftModel(small, least=0), **GREEDY)
    assert result.tokens == greedy(IDS, 30)
    assert llm.metrics.accepted_tokens > 20
    assert held(small) == 0
    check(small)


def test_hooks_and_scores_and_embeddings(llm):
    seen = []
    llm.generate(PROMPT, max_tokens=5, hooks=[lambda row, tokens: seen.append(len(tokens))], **GREEDY)
    assert seen == [len(IDS) + i for i in range(5)]
    scores = llm.score(PROMPT)
    assert np.array_equal(scores, recurrent_llm().score(PROMPT))
    many = [PROMPT[:n] for n in range(1, 60)]  # more texts than slots
    vectors = llm.embed(many, pooling="last")
    assert np.array_equal(vectors[40], llm.embed([many[40]], pooling="last")[0])
    assert held(llm) == 0


# -- the prefix cache --


def test_a_prompt_again_goes_on_from_its_checkpoint(llm):
    llm.generate(PROMPT, max_tokens=5, **GREEDY)
    computed(llm)
    again = llm.generate(PROMPT, max_tokens=5, **GREEDY)
    assert again.tokens == greedy(IDS, 5)
    assert again.usage.cached_tokens == len(IDS) - 8
    assert computed(llm) == 8 + 4


def test_a_conversation_goes_on_from_the_end_of_the_last_answer(llm):
    first = llm.generate(PROMPT, max_tokens=20, **GREEDY)
    longer = [*IDS, *first.tokens, 65, 66]
    second = llm.generate(longer, max_tokens=5, **GREEDY)
    assert second.usage.cached_tokens == len(IDS) + 19
    assert second.tokens == greedy(longer, 5)


def test_a_longer_conversation_keeps_the_states_of_the_shorter_one(llm):
    first = [*IDS, *llm.generate(PROMPT, max_tokens=20, **GREEDY).tokens[:-1]]
    llm.generate([*first, 65, 66, 67], max_tokens=20, **GREEDY)
    assert llm.cache.stats().sequences == 1
    other = llm.generate([*first, 90, 90], max_tokens=3, **GREEDY)
    assert other.usage.cached_tokens == len(first)
    assert other.tokens == greedy([*first, 90, 90], 3)


def test_where_a_prompt_parts_from_another_a_checkpoint_is_taken(llm):
    system = PROMPT[:100]
    llm.generate(system + "One question about foxes, please, a long one.", max_tokens=3, **GREEDY)
    second = llm.generate(system + "Two " * 20, max_tokens=3, **GREEDY)
    assert second.usage.cached_tokens == 0  # there is no state at 100 yet
    third = llm.generate(system + "Three", max_tokens=3, **GREEDY)
    assert third.usage.cached_tokens == 100
    assert third.tokens == greedy((system + "Three").encode(), 3)


def test_requests_that_come_together_compute_their_common_prefix_once(llm):
    prompts = [PROMPT + word for word in ("one", "two", "three")]
    results = llm.generate(prompts, max_tokens=4, **GREEDY)
    assert [r.tokens for r in results] == [greedy(p.encode(), 4) for p in prompts]
    assert computed(llm) < len(IDS) + 100


def test_checkpoints_stay_within_their_budget():
    with recurrent_llm(limits=Limits(checkpoint_bytes=3 * SLOT)) as llm:
        for n in range(8):
            llm.generate(chr(65 + n) + PROMPT, max_tokens=3, **GREEDY)
            assert llm.cache.stats().checkpoints <= 3
        assert llm.cache.stats().evictions > 0
        last = llm.generate("H" + PROMPT, max_tokens=3, **GREEDY)
        assert last.usage.cached_tokens > 0
        check(llm)


@pytest.mark.parametrize("options", [{"prefix_cache": False}, {"limits": Limits(checkpoint_bytes=0)}])
def test_without_checkpoints_everything_is_computed(options):
    with recurrent_llm(**options) as llm:
        for _ in range(2):
            result = llm.generate(PROMPT, max_tokens=5, **GREEDY)
            assert result.tokens == greedy(IDS, 5)
            assert result.usage.cached_tokens == 0
        seq = llm.sequence(PROMPT)
        seq.logits  # noqa: B018
        seq.truncate(20)
        assert seq.step(temperature=0).token == greedy(IDS[:20], 1)[0]
        check(llm)


def test_a_pinned_prefix_keeps_its_state():
    with recurrent_llm(limits=Limits(checkpoint_bytes=SLOT)) as llm:
        with llm.sequence(PROMPT) as seq:
            pin = llm.cache.pin(seq)
        for n in range(4):
            llm.generate(chr(65 + n) + PROMPT, max_tokens=3, **GREEDY)
        assert llm.generate(PROMPT + "!", max_tokens=1, **GREEDY).usage.cached_tokens == len(IDS)
        pin.release()
        assert held(llm) == 0
        check(llm)


# -- sequences --


def test_a_fork_shares_the_state_until_one_goes_on(llm):
    seq = llm.sequence(PROMPT)
    seq.logits  # noqa: B018
    copied, used = llm.backend.n_copied, held(llm)
    twins = [seq.fork() for _ in range(3)]
    assert (llm.backend.n_copied, held(llm)) == (copied, used)
    for number, twin in enumerate(twins):
        twin.append([65 + number])
    llm.step([seq, *twins], temperature=0)
    for number, twin in enumerate(twins):
        assert twin.tokens == [*IDS, 65 + number, *greedy([*IDS, 65 + number], 1)]


def test_truncate_replays_from_a_checkpoint(llm):
    long = IDS * 6
    seq = llm.sequence(long)
    seq.logits  # noqa: B018
    computed(llm)
    seq.truncate(700)
    assert seq.tokens == long[:700]
    assert (seq.position, seq.positions) == (700, list(range(700)))
    assert seq.step(temperature=0).token == greedy(long[:700], 1)[0]
    assert computed(llm) <= 700 - 256
    seq.truncate(0)
    seq.append("abc")
    assert seq.step(temperature=0).token == greedy(b"abc", 1)[0]


def test_the_end_can_be_removed_in_any_way(llm):
    for remove in (
        lambda seq: seq.truncate(40),
        lambda seq: seq.remove(40, 200),
        lambda seq: seq.remove(40, 200, close=True),
        lambda seq: llm.cells.remove(seq.id, 40),
        lambda seq: llm.cells.remove_cells(seq.id, llm.cells.view(seq.id)[40:]),
    ):
        seq = llm.sequence(PROMPT)
        seq.logits  # noqa: B018
        remove(seq)
        assert seq.tokens == IDS[:40]
        assert np.array_equal(seq.logits, row_of(chain(IDS[:40]), 258))
        check(llm)
        seq.close()


def test_pending_tokens_can_be_changed_anywhere(llm):
    seq = llm.sequence(PROMPT)
    seq.remove(10, 20, close=True)
    assert seq.step(temperature=0).token == greedy([*IDS[:10], *IDS[20:]], 1)[0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda llm, seq: seq.remove(3, 5),
        lambda llm, seq: seq.remove(3, 5, close=True),
        lambda llm, seq: seq.shift(3, by=2),
        lambda llm, seq: llm.cells.remove(seq.id, 2, 4),
        lambda llm, seq: llm.cells.copy(seq.id, 7, 3, 9),
        lambda llm, seq: llm.parallel(PROMPT, threshold=0.1, max_tokens=3),
        lambda llm, seq: llm.parallel(seq, threshold=0.1, max_tokens=3),
        lambda llm, seq: llm.generate(PROMPT, overflow="shift", max_tokens=3),
    ],
)
def test_what_has_no_exact_meaning_names_the_layers(llm, edit):
    seq = llm.sequence(PROMPT)
    seq.logits  # noqa: B018
    with pytest.raises(Unsupported, match=f"no exact meaning for {KIND} layers"):
        edit(llm, seq)
    assert seq.tokens == IDS
    assert seq.step(temperature=0).token == greedy(IDS, 1)[0]


def test_logits_that_a_failed_hook_has_touched_are_computed_again(llm):
    seq = llm.sequence(PROMPT)

    def fail(row, tokens):
        row[:] = 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(seq, max_tokens=3, hooks=[fail], **GREEDY)
    assert np.array_equal(seq.logits, row_of(chain(IDS), 258))


def test_batches_made_by_hand(llm):
    batch = Batch()
    batch.extend(IDS[:20], 0, (1, 2), logits=True)
    assert np.array_equal(llm.forward(batch)[0], row_of(chain(IDS[:20]), 258))
    for sequence, token in ((1, 65), (2, 66)):
        batch = Batch()
        batch.add(token, 20, (sequence,), logits=True)
        assert np.array_equal(llm.forward(batch)[0], row_of(chain([*IDS[:20], token]), 258))
    llm.cells.copy(1, 3)
    seq, vectors = llm.sequence("abc"), Batch()
    vectors.add_vector([0.0, 0.0], 3, (seq.id,))
    with pytest.raises(Unsupported, match="vectors in sequence"):
        llm.forward(vectors)
    with pytest.raises(Unsupported, match="copying cells into sequence"):
        llm.cells.copy(1, seq.id)
    plain = Batch()
    plain.extend([70, 71], 3, (seq.id,))
    llm.forward(plain)
    assert seq.tokens == [*b"abc", 70, 71]
    assert seq.step(temperature=0).token == greedy([*b"abc", 70, 71], 1)[0]
    seq.close()
    with pytest.raises(Unsupported, match="going back to position 7"):
        llm.cells.remove(3, 7)
    wrong = Batch()
    wrong.add(65, 30, (1,))
    with pytest.raises(Unsupported, match="a token at position 30 where the state stands at 21"):
        llm.forward(wrong)
    llm.cells.clear()
    assert held(llm) == 0


# -- errors --


def test_a_pass_that_fails_loses_no_token(llm):
    seq, other = llm.sequence(PROMPT), llm.sequence("other")
    llm.logits([seq, other])
    seq.append("more"), other.append("less")
    llm.backend.failures = [6]
    with pytest.raises(MemoryError):
        llm.logits([seq, other])
    check(llm)
    assert np.array_equal(seq.logits, row_of(chain([*IDS, *b"more"]), 258))
    assert np.array_equal(other.logits, row_of(chain(b"otherless"), 258))


@pytest.mark.parametrize("options", [{}, {"loop": "fused"}, {"draft": "lookup"}, {"n": 3}, {"beams": 3}])
@pytest.mark.parametrize("fails", [[0], [None, 0], [None, None, None, 1]])
def test_a_request_whose_pass_fails_frees_its_slots(llm, options, fails):
    llm.backend.failures = list(fails)
    options = GREEDY | options
    if "beams" in options:
        del options["temperature"]
    with contextlib.suppress(MemoryError):
        llm.generate(PROMPT + PROMPT, max_tokens=20, **options)
    llm.backend.failures = []
    check(llm)
    assert held(llm) == 0
    assert llm.generate(PROMPT, max_tokens=5, **GREEDY).tokens == greedy(IDS, 5)


def test_a_cancelled_stream_frees_its_slot(llm):
    stream = llm.stream(PROMPT, max_tokens=50, **GREEDY)
    next(iter(stream))
    assert held(llm) == 1
    stream.cancel()
    assert held(llm) == 0


# -- when slots run out --


def test_requests_wait_or_are_preempted_when_slots_run_out():
    with recurrent_llm(slots=3) as llm:
        prompts = [PROMPT[:n] for n in range(40, 50)]
        texts = llm.generate(prompts, max_tokens=12, **GREEDY)
        assert [text.tokens for text in texts] == [greedy(prompt.encode(), 12) for prompt in prompts]
        samples = llm.generate(PROMPT, n=6, max_tokens=12, temperature=1.0, seed=1)
        wide = recurrent_llm().generate(PROMPT, n=6, max_tokens=12, temperature=1.0, seed=1)
        assert [text.tokens for text in samples] == [text.tokens for text in wide]
        assert llm.metrics.preempted > 0
        check(llm)


@pytest.mark.parametrize("options", [{}, {"draft": "lookup"}, {"loop": "fused"}, {"n": 3}])
def test_one_slot_is_enough(options):
    with recurrent_llm(slots=1) as llm:
        for _ in range(2):
            found = llm.generate(PROMPT, max_tokens=20, **GREEDY, **options)
            for result in found if isinstance(found, list) else [found]:
                assert result.tokens == greedy(IDS, 20)
            check(llm)
        with llm.sequence(PROMPT + "!") as seq:
            seq.step(temperature=0)
            seq.truncate(50)
            assert seq.step(temperature=0).token == greedy(IDS[:50], 1)[0]
        check(llm)


def test_drafts_are_dropped_when_slots_run_out():
    with recurrent_llm(slots=2) as llm:
        texts = llm.generate(["abab" * 9, "cdcd" * 9], max_tokens=20, draft="lookup", **GREEDY)
        assert [text.tokens for text in texts] == [greedy(b"abab" * 9, 20), greedy(b"cdcd" * 9, 20)]
        check(llm)


def test_sequences_that_hold_all_slots_are_named():
    with recurrent_llm(slots=2) as llm:
        several = [llm.sequence(text) for text in ("one", "two", "three")]
        llm.logits(several[:2])
        with pytest.raises(
            CacheFull, match=f"1 state slots are needed for {KIND} layers and 0 of 2 are free"
        ):
            several[2].logits  # noqa: B018
        with pytest.raises(CacheFull, match="state slots"):
            llm.generate("four", max_tokens=2)
        several[0].close()
        assert several[2].step(temperature=0).token == greedy(b"three", 1)[0]
        check(llm)


def test_a_search_wider_than_the_slots_says_so():
    with recurrent_llm(slots=2) as llm:
        result = llm.generate(PROMPT, beams=5, max_tokens=8)
        assert result.stop_reason == "cache full"
        assert held(llm) == 0


# -- numbers --


def test_stats_and_metrics_show_slots(llm):
    with llm.sequence(PROMPT) as seq:
        seq.logits  # noqa: B018
        stats = llm.cache.stats()
        assert (stats.slots, stats.slots_held, stats.slot_bytes) == (32, 1, SLOT)
        assert stats.slots == stats.slots_free + stats.slots_held + stats.checkpoints
        metrics = llm.metrics.as_dict()
        assert (metrics["slots"], metrics["slot_bytes"]) == (32, SLOT)
        assert metrics["slots_used"] == stats.slots_held + stats.checkpoints


def test_the_table_as_plain_data_has_the_slots(llm):
    seq = llm.sequence("abc")
    seq.logits  # noqa: B018
    twin = seq.fork()
    assert llm.cells.snapshot()["slots"] == [{"slot": 0, "position": 3, "sequences": [seq.id, twin.id]}]


def test_asyncio(llm):
    async def several():
        return await asyncio.gather(
            *(llm.agenerate(PROMPT[:n], max_tokens=9, **GREEDY) for n in range(9, 30))
        )

    assert [text.tokens for text in asyncio.run(several())] == [greedy(IDS[:n], 9) for n in range(9, 30)]


def test_a_budget_must_be_a_number():
    with pytest.raises(InvalidRequest, match="checkpoint_bytes"):
        Limits(checkpoint_bytes=-1)
