"""The incremental detokenizer: whole characters only, and in sum the same as decoding at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import InvalidRequest
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata, spm

BPE = load_tokenizer(metadata(bpe(specials=["<|end|>"], user=["<tool>"])))
SPM = load_tokenizer(metadata(spm()))


def pushed(detokenizer, items):
    return "".join([*map(detokenizer.push, items), detokenizer.flush()])


@given(st.lists(st.binary(max_size=5)))
def test_bytes_in_any_split_are_the_text_decoded_at_once(parts):
    assert pushed(BPE.detokenizer(), parts) == b"".join(parts).decode("utf-8", "replace")


@given(st.text(), st.data())
def test_no_push_shows_half_a_character(text, data):
    encoded = text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(encoded))).map(sorted))
    parts = [encoded[a:b] for a, b in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    detokenizer = BPE.detokenizer()
    shown = [detokenizer.push(part) for part in parts]
    assert "".join(shown) == text
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("tokenizer", [BPE, SPM], ids=["bpe", "spm"])
@pytest.mark.parametrize("special", [False, True])
def test_any_ids_pushed_one_by_one_are_decode(tokenizer, special):
    @given(st.lists(st.integers(0, tokenizer.n_vocab - 1)))
    def check(ids):
        assert pushed(tokenizer.detokenizer(special), ids) == tokenizer.decode(ids, special)

    check()


@pytest.mark.parametrize("tokenizer", [BPE, SPM], ids=["bpe", "spm"])
def test_a_look_at_a_token_is_what_a_copy_would_show_and_changes_nothing(tokenizer):
    @given(st.lists(st.integers(0, tokenizer.n_vocab - 1)), st.integers(0, tokenizer.n_vocab - 1))
    def check(ids, token):
        detokenizer = tokenizer.detokenizer()
        for one in ids:
            detokenizer.push(one)
        before = detokenizer.state
        assert detokenizer.peek(token) == pushed(detokenizer.fork(), [token])
        assert detokenizer.state == before

    check()


def test_a_character_waits_for_its_last_byte():
    ids = BPE.encode("é😀")
    detokenizer = BPE.detokenizer()
    assert [detokenizer.push(token) for token in ids] == ["", "é", "", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_its_state_can_be_carried_to_another():
    for tokenizer, text in ((BPE, "a😀b"), (SPM, "hello world")):
        ids = tokenizer.encode(text)
        for cut in range(len(ids)):
            first, second = tokenizer.detokenizer(), tokenizer.detokenizer()
            shown = "".join(map(first.push, ids[:cut]))
            second.state = first.state
            assert shown + pushed(second, ids[cut:]) == tokenizer.decode(ids)


def test_flush_gives_what_was_never_finished_and_begins_anew():
    detokenizer = BPE.detokenizer()
    assert detokenizer.push(b"a\xf0\x9f") == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.push(b"\x98b") == "\ufffdb"


def test_a_continued_text_keeps_its_space():
    hello, world = SPM.encode("hello world")
    assert SPM.detokenizer().push(world) == "world"
    assert SPM.detokenizer(after=hello).push(world) == " world"
    assert SPM.detokenizer(after=SPM.bos_id).push(world) == "world"


def test_special_tokens_show_on_request():
    ids = BPE.encode("a<|end|>b", special=True)
    assert pushed(BPE.detokenizer(), ids) == "ab"
    assert pushed(BPE.detokenizer(special=True), ids) == "a<|end|>b"


@pytest.mark.parametrize("wrong", ["a", 1.0, None, -1, 10**9, True])
def test_what_is_no_token_is_refused(wrong):
    with pytest.raises(InvalidRequest, match=r"is no token; ids are integers from 0 to"):
        BPE.detokenizer().push(wrong)
