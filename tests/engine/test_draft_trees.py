"""A tree of drafts is verified in one pass; the text is that of a plain request, to the last bit."""

import random

import numpy as np
import pytest

import stretto
from param_names import named
from stretto import DraftModel, Limits, PromptLookup
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.drafts.base import ROOT, DraftTree
from stretto.drafts.lookup import Lookup
from stretto.errors import InvalidRequest, Unsupported
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec

PROMPT = [5, 6, 7, 5, 6, 9, 5, 6, 8, 5, 6]


def tiny(name="llama", n_cells=256, backend=NativeBackend, **options):
    threads = (1,) if backend is NativeBackend else ()
    return LLM(backend(tiny_file(name), tiny_spec(name), n_cells, *threads), byte_tokenizer(), **options)


class Branches:
    """Drafts the continuations that a function makes; a drafter and a proposer at once."""

    def __init__(self, propose, most=6):
        self.propose_branches, self.most = propose, most

    def begin(self, tokenizer):
        return self

    def propose(self, tokens, most):
        raise AssertionError("branches were asked for")

    def close(self):
        pass


def bushes(rng, whole, n_vocab=96):
    """A drafter of random continuations, many of which follow the text for a while."""

    def propose(tokens, most, branches):
        right = whole[len(tokens) : len(tokens) + most]
        found = []
        for _ in range(branches):
            cut = rng.randrange(len(right) + 1)
            wrong = [rng.randrange(n_vocab) for _ in range(rng.randrange(most + 1))]
            found.append((right[:cut] + wrong)[:most])
        return found

    return Branches(propose)


def settled(llm):
    assert llm.cache.stats().held == 0
    llm.cells.check()


# -- the tree --


def test_continuations_share_the_nodes_they_begin_with():
    tree = DraftTree([[1, 2, 3], [1, 4], [1, 2], [], [5]])
    assert tree.tokens == [1, 2, 3, 4, 5]
    assert tree.branches == [[1, 2, 3], [1, 4], [5]]
    assert tree.depths == [0, 1, 2, 3, 2, 1]
    assert tree.list_branches() == [[0, 1, 2], [0, 1], [0], [0], [1], [2]]
    assert [tree.branch_through(node) for node in range(1, 6)] == [0, 0, 0, 1, 2]
    assert [tree.n_common(branch) for branch in (1, 2)] == [1, 0]


def test_a_longer_continuation_extends_its_branch():
    tree = DraftTree([[1, 2], [3], [1, 2, 4]])
    assert tree.branches == [[1, 2, 4], [3]]
    assert tree.child(tree.child(tree.child(ROOT, 1), 2), 4) == 4


def test_a_tree_has_no_more_tokens_than_there_is_room_for():
    tree = DraftTree()
    for continuation in ([1, 2, 3], [1, 4, 5, 6], [7]):
        tree.add(continuation, room=4)
    assert tree.tokens == [1, 2, 3, 4]
    assert tree.branches == [[1, 2, 3], [1, 4]]
    assert not DraftTree()


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_holds_the_prefixes_of_its_continuations_and_nothing_else(seed):
    rng = random.Random(seed)
    several = [[rng.randrange(3) for _ in range(rng.randrange(5))] for _ in range(6)]
    tree = DraftTree(several)
    prefixes = {tuple(one[:n]) for one in several for n in range(1, len(one) + 1)}
    assert len(tree) == len(prefixes)
    for prefix in prefixes:
        node = ROOT
        for token in prefix:
            node = tree.child(node, token)
            assert tree.tokens[node - 1] == token
        assert tree.depths[node] == len(prefix)
    leaves = {tuple(tree.tokens[node - 1] for node in branch) for branch in tree.branches}
    assert leaves == {one for one in prefixes if not any(one == other[:-1] for other in prefixes)}
    assert len(leaves) == len(tree.branches)


# -- the same text --

OPTIONS = [
    {"temperature": 0},
    {"seed": 5},
    {"seed": 6, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"seed": 7, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 0, "logprobs": 3},
    {"seed": 8, "hooks": [lambda logits, tokens: np.negative(logits, out=logits)]},
]


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2"])
@pytest.mark.parametrize("options", OPTIONS, ids=named)
def test_the_same_text_from_every_tree(name, options):
    rng = random.Random(repr(options))
    options = {**options, "max_tokens": 40, "ignore_eos": True}
    with tiny(name) as llm:
        plain = llm.generate(PROMPT, **options)
        for branches in (2, 4, 16):
            draft = bushes(rng, PROMPT + plain.tokens)
            drafted = llm.generate(PROMPT, draft=draft, draft_branches=branches, **options)
            assert (drafted.tokens, drafted.logprobs) == (plain.tokens, plain.logprobs)
            settled(llm)
        assert 0 < llm.metrics.accepted_tokens < llm.metrics.drafted_tokens


def test_the_logits_behind_a_side_branch_are_those_of_a_plain_step():
    with tiny() as llm:
        plain = llm.sequence(PROMPT)
        llm.generate(plain, max_tokens=12, temperature=0, ignore_eos=True)
        whole = [int(token) for token in plain.tokens]
        side = Branches(lambda tokens, most, _: [[1] * most, whole[len(tokens) : len(tokens) + most]])
        drafted = llm.sequence(PROMPT)
        llm.generate(drafted, max_tokens=12, temperature=0, ignore_eos=True, draft=side, draft_branches=2)
        assert llm.metrics.accepted_tokens > 4
        assert drafted.tokens == plain.tokens
        assert (drafted.logits == plain.logits).all()
        cells = llm.cells
        assert (cells.tokens(drafted.id) == cells.tokens(plain.id)).all()
        assert (cells.positions(drafted.id) == cells.positions(plain.id)).all()
        assert sorted(cells.sequences) == sorted((plain.id, drafted.id))  # no lane is left
        drafted.close()
        plain.close()
        settled(llm)


def test_the_reference_backend_verifies_trees_too():
    with tiny(backend=ReferenceBackend) as llm:
        options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        plain = llm.generate(PROMPT, **options)
        draft = bushes(random.Random(1), PROMPT + plain.tokens)
        assert llm.generate(PROMPT, draft=draft, draft_branches=4, **options).tokens == plain.tokens
        assert llm.metrics.accepted_tokens > 0
        settled(llm)


def test_a_tree_takes_fewer_passes_than_a_line_that_is_wrong():
    text = "0123456789" * 4
    llm = mock_llm(text)
    whole = llm.tokenizer.encode("?" + text)
    wrong_first = Branches(lambda tokens, most, n: [[7] * most, whole[len(tokens) : len(tokens) + most]])
    result = llm.generate("?", draft=wrong_first, draft_branches=2, temperature=0, max_tokens=39)
    assert result.text == text[:39]
    assert llm.metrics.steps < 20
    settled(llm)
    assert llm.generate("?" + text[:30], temperature=0).text == text[30:]  # what was parked is right


def test_random_requests_with_trees_share_passes_and_few_cells():
    rng = random.Random(1)
    options = {"temperature": 0.9, "max_tokens": 25, "ignore_eos": True}

    def say(seen):
        row = np.zeros(258, np.float32)
        row[(sum(seen[-3:]) * 7 + len(seen)) % 40 + 60] = 4.0
        row[(seen[-1] * 3) % 40 + 60] = 4.5
        return row

    llm = mock_llm(say, cells=160, limits=Limits(max_tokens_per_step=24))
    plain = {seed: llm.generate("p" * (seed % 9 + 1), seed=seed, **options).tokens for seed in range(16)}

    def both(tokens, most, branches):
        return [[(tokens[-1] * 3) % 40 + 60] * most, [(sum(tokens[-3:]) * 7 + len(tokens)) % 40 + 60]]

    drafts = [{}, {"draft": "lookup", "draft_branches": 3}, {"draft": Branches(both), "draft_branches": 2}]
    streams = {}
    for seed in rng.sample(range(16), 16):
        streams[seed] = llm.stream("p" * (seed % 9 + 1), seed=seed, **rng.choice(drafts), **options)
    for seed, stream in streams.items():
        assert stream.result.tokens == plain[seed]
    assert llm.metrics.accepted_tokens > 0
    settled(llm)


def test_preempted_requests_take_their_trees_up_again():
    llm = mock_llm(lambda seen: 97 + len(seen) % 7, cells=60)
    options = {"temperature": 0, "max_tokens": 30}
    alone = [llm.generate(text, **options).text for text in ("a", "bb", "ccc")]
    draft = Branches(lambda tokens, most, _: [[1], [97 + (len(tokens) + i) % 7 for i in range(most)]])
    streams = [llm.stream(text, draft=draft, draft_branches=2, **options) for text in ("a", "bb", "ccc")]
    assert [stream.result.text for stream in streams] == alone
    assert llm.metrics.preempted > 0
    settled(llm)


def test_a_grammar_cuts_every_branch():
    grammar = stretto.Grammar.choices(["1221", "1223", "1300", "9"])
    llm = mock_llm("1223")
    options = {"grammar": grammar, "temperature": 0}
    assert llm.generate("?", **options).text == "1223"
    several = [b"1221", b"1223", b"1234", b"13"]  # the third is no choice
    draft = Branches(lambda tokens, most, n: [list(one[len(tokens) - 1 :][:most]) for one in several])
    drafted = llm.generate("?", draft=draft, draft_branches=4, **options)
    assert (drafted.text, drafted.stop_reason) == ("1223", "grammar")
    settled(llm)


# -- in the middle of a draft --


@pytest.mark.parametrize("branches", [1, 2])
def test_a_callback_never_finds_cells_of_a_rejected_token(branches):
    with tiny() as llm:
        options = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
        whole = PROMPT + llm.generate(PROMPT, **options).tokens
        wanted = llm.logits([llm.sequence([*whole[: len(PROMPT) + 3], 1])])
        llm.cache.clear()
        found = []

        def look(token):
            if len(found) == 2:  # the draft's second token is wrong; this one was sampled in its place
                found.append(llm.sequence([*whole[: len(PROMPT) + 3], 1]).logits.copy())
            else:
                found.append(None)

        class Wrong(Branches):
            def propose(self, tokens, most):
                return self.propose_branches(tokens, most, 1)[0]

        def wrong(tokens, most, n):
            right = whole[len(tokens)]
            return [[right, 1, 1][:most], [1, 1]][:n]

        llm.generate(PROMPT[:-1], max_tokens=1)
        draft = Wrong(wrong)
        result = llm.generate(PROMPT, draft=draft, draft_branches=branches, callback=look, **options)
        assert PROMPT + result.tokens == whole
        assert (found[2] == wanted[0]).all()


@pytest.mark.parametrize("branches", [1, 2])
def test_an_end_token_that_was_drafted_gets_no_cell_of_the_text(branches):
    llm = mock_llm("ab")
    end = llm.tokenizer.eos_id

    class Line(Branches):
        def propose(self, tokens, most):
            return self.propose_branches(tokens, most, 1)[0]

    whole = [*b"xab", end]
    draft = Line(lambda tokens, most, n: [whole[len(tokens) :][:most], [1, 2]][:n])
    seq = llm.sequence("x")
    assert llm.generate(seq, draft=draft, draft_branches=branches, temperature=0).text == "ab"
    assert seq.tokens == whole[:3]
    assert len(llm.cells.view(seq.id)) == 3


# -- who drafts --


def test_a_lookup_drafts_what_followed_each_occurrence():
    lookup = Lookup(2)
    assert lookup.propose_branches(PROMPT, 2, 4) == [[8, 5], [9, 5], [7, 5]]
    assert lookup.propose_branches(PROMPT, 2, 2) == [[8, 5], [9, 5]]
    assert lookup.propose(PROMPT, 3) == [8, 5, 6]
    assert lookup.propose_branches([1, 2, 3], 2, 4) == []  # another text
    assert Lookup(2).propose_branches([5, 6, 7, 5, 6, 7, 5, 6], 2, 4) == [[7, 5]]  # each once


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_first_branch_of_a_lookup_is_its_line(n):
    rng = random.Random(n)
    tokens, tree, line = [], Lookup(n), Lookup(n)
    for _ in range(300):
        tokens.append(rng.randrange(4))
        if rng.random() < 0.05:
            del tokens[rng.randrange(len(tokens)) :]
        branches, found = tree.propose_branches(tokens, 3, 4), line.propose(tokens, 3)
        assert branches[:1] == ([found] if found else [])
        assert len({tuple(one) for one in branches}) == len(branches)


def test_a_draft_model_divides_where_it_is_uncertain():
    with tiny() as small:
        certain = DraftModel(small, split=1.0, least=0).begin(small.tokenizer)
        unsure = DraftModel(small, split=0.0, least=0).begin(small.tokenizer)
        line = certain.propose(PROMPT, 4)
        assert certain.propose_branches(PROMPT, 4, 3) == [line]
        branches = unsure.propose_branches(PROMPT, 4, 3)
        assert branches[0] == line
        logits = small.sequence(PROMPT).logits
        best = np.argsort(-logits, kind="stable")[:3].tolist()
        assert [one[0] for one in branches] == best
        for one in branches[1:]:  # each goes on with its own most probable tokens
            continued = small.generate(PROMPT + one[:1], temperature=0, max_tokens=3, ignore_eos=True)
            assert one[1:] == continued.tokens
        certain.close()
        unsure.close()
        settled(small)


def test_a_model_drafts_trees_for_another():
    with tiny("llama") as large, tiny("qwen2") as small:
        options = {"max_tokens": 40, "ignore_eos": True, "seed": 2, "temperature": 0.3}
        plain = large.generate([1, 2, 3], **options)
        for draft in (DraftModel(small, least=0), DraftModel(large, most=6, least=0), PromptLookup(1)):
            drafted = large.generate([1, 2, 3], draft=draft, draft_branches=3, **options)
            assert drafted.tokens == plain.tokens
        assert large.metrics.accepted_tokens > 0
        settled(large)
        settled(small)


# -- what is refused --


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft_branches": 2}, "draft_branches is for draft"),
        ({"draft": "lookup", "draft_branches": 0}, "draft_branches"),
        ({"draft": "lookup", "draft_branches": 17}, "draft_branches"),
        ({"draft": "lookup", "draft_branches": True}, "draft_branches"),
    ],
)
def test_wrong_numbers_of_branches_are_refused(options, words):
    with pytest.raises(InvalidRequest, match=words):
        mock_llm("Hi").generate("p", **options)


def test_a_drafter_of_lines_is_refused():
    class Line:
        most = 4

        def begin(self, tokenizer):
            return self

        def propose(self, tokens, most):
            return []

        def close(self):
            pass

    with pytest.raises(InvalidRequest, match="propose_branches"):
        mock_llm("Hi").generate("p", draft=Line(), draft_branches=2)
    assert mock_llm("Hi").generate("p", draft=Line()).text == "Hi"


def test_recurrent_layers_take_no_trees():
    with tiny("granitehybrid") as llm, pytest.raises(Unsupported, match="a tree of drafts"):
        llm.generate([1, 2, 3], draft="lookup", draft_branches=2)
