"""Tokenizers: the golden ids, round trips, special tokens, and files that are not to be trusted."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stretto.errors import InvalidRequest, ModelError
from stretto.text.bpe import read_merges
from stretto.text.loading import load_tokenizer
from stretto.text.tokenizer import CHUNK_CHARACTERS, Matcher, chunks
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import Strings
from stretto.weights.writer import write_gguf
from vocabularies import BYTE, CONTROL, NORMAL, bpe, metadata, spm

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
TEXT = st.text() | st.text("helo wrd\n<tool>|end▁'s \t0é😀", max_size=40)
NO_SEARCH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(values):
    return load_tokenizer(metadata(values))


BPE = load(bpe(specials=["<|end|>"], user=["<tool>"], bos_token_id=0))
SPM = load(spm())


# -- the real models --


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return load_tokenizer(GGUF(smollm2_path).metadata)


@pytest.fixture(scope="module")
def gemma3(gemma3_path):
    return load_tokenizer(GGUF(gemma3_path).metadata)


def check_golden(tokenizer, name):
    cases = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))["tokenize"]
    assert len(cases) >= 30
    for case in cases:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
        assert tokenizer.encode(case["text"], special=True) == case["ids_special"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["text"]


@pytest.mark.golden
def test_smollm2_gives_the_golden_ids(smollm2):
    check_golden(smollm2, "smollm2-135m-instruct-q4_1")


@pytest.mark.golden
def test_gemma3_gives_the_golden_ids(gemma3):
    check_golden(gemma3, "gemma-3-270m-q4_k_m")


def test_what_the_real_models_say_of_themselves(smollm2, gemma3):
    assert (smollm2.kind, smollm2.name, smollm2.n_vocab) == ("bpe", "smollm", 49152)
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.add_bos, smollm2.add_eos) == (1, 2, False, False)
    assert smollm2.specials["<|im_start|>"] == 1
    assert smollm2.end_ids >= {0, 2}
    assert (gemma3.kind, gemma3.name, gemma3.n_vocab) == ("sentencepiece", "llama", 262144)
    assert (gemma3.bos_id, gemma3.eos_id, gemma3.add_bos, gemma3.add_eos) == (2, 1, True, False)
    assert gemma3.end_ids >= {1, gemma3.specials["<end_of_turn>"]}


# SmolLM2 has no token for some bytes: six control characters, and the first byte of planes without text.
LACKING = re.compile("[\x04\x06\x13\x14\x16\x1d\U00040000-\U000bffff]")


@NO_SEARCH
@given(st.text())
def test_smollm2_round_trip(smollm2, text):
    if LACKING.search(text):
        with pytest.raises(InvalidRequest, match="has no token for byte"):
            smollm2.encode(text)
        text = LACKING.sub("", text)
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text
    assert smollm2.end_ids.isdisjoint(ids)


@NO_SEARCH
@given(st.text())
def test_gemma3_round_trip(gemma3, text):
    assume("\u2581" not in text)
    assert gemma3.decode(gemma3.encode(text)) == text


def test_gemma3_loads_quickly(gemma3_path):
    begin = time.process_time()  # one thread's work, whatever else the machine does
    load_tokenizer(GGUF(gemma3_path).metadata)
    assert time.process_time() - begin < 1.5


def test_long_texts_are_cut_where_it_does_not_matter(gemma3, smollm2):
    text = "Ōne of the 12 things  you'll see.\nNext line, 中文\nthen more <tool> of it\n\n" * 700
    assert len(text) > 5 * CHUNK_CHARACTERS
    for tokenizer in (gemma3, smollm2):
        pieces = [token for line in text.splitlines(keepends=True) for token in tokenizer.encode(line)]
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert abs(len(ids) - len(pieces)) <= 700  # lines may join their breaks
        assert ids[:20] == tokenizer.encode(text[:200])[:20]


@pytest.mark.parametrize("unit", ["a", " ", "\n", "<|im_", "1", "é", "中", "'s", " \n", "!", "😀"])
def test_time_is_linear_on_monotonous_text(smollm2, gemma3, unit):
    for tokenizer in (smollm2, gemma3):

        def seconds(length, tokenizer=tokenizer):
            text = unit * (length // len(unit))
            begin = time.process_time()
            ids = tokenizer.encode(text, special=True, bos=False)
            taken = time.process_time() - begin
            assert tokenizer.decode(ids) == text
            return taken

        short, long = min(seconds(20_000) for _ in range(3)), seconds(200_000)
        assert long < 40 * short + 0.5  # 10 is linear, 100 would be quadratic


# -- encoding --


@pytest.mark.parametrize("tokenizer", [BPE, SPM, load(spm(add_space_prefix=False))], ids=repr)
def test_decode_undoes_encode(tokenizer):
    @given(TEXT)
    def check(text):
        assume(tokenizer.kind == "bpe" or "\u2581" not in text)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(type(token) is int for token in ids)
        assert not set(tokenizer.specials.values()) & set(ids)  # no text forges a special token

    check()


def test_merges_apply_by_rank():
    assert [BPE.piece(token) for token in BPE.encode("hello hell")] == ["hello", "Ġ", "hell"]
    assert [SPM.piece(token) for token in SPM.encode("hello world")] == ["▁hello", "▁world"]


def test_control_tokens_are_found_on_request_only():
    for tokenizer in (BPE, SPM):
        end = tokenizer.specials["<|end|>"]
        assert end not in tokenizer.encode("a<|end|>")
        assert tokenizer.encode("<|end|>", special=True, bos=False) == [end]
        assert tokenizer.token_bytes(end) == b""
        assert tokenizer.decode([end]) == ""
        assert tokenizer.decode([end], special=True) == "<|end|>"


def test_user_defined_tokens_are_always_found():
    for tokenizer in (BPE, SPM):
        tool = tokenizer.encode("<tool>")
        assert len(tool) == 1
        assert tokenizer.piece(tool[0]) == "<tool>"
        assert tokenizer.decode(tokenizer.encode("a<tool>b")) == "a<tool>b"


def test_special_tokens_match_leftmost_then_longest():
    tokens = {"<a>": 1, "<a><b>": 2, "a><b": 3, "<c": 4}
    assert Matcher(tokens).split("x<a><b>y<a><c<") == ["x", 2, "y", 1, 4, "<"]
    assert Matcher({}).split("x<a>") == ["x<a>"]
    assert Matcher({"]": 1, "^": 2, "\\": 3, "-": 4}).split("a]^\\-z") == ["a", 1, 2, 3, 4, "z"]


def test_no_merge_makes_a_special_token():
    types = np.array([NORMAL] * 257 + [CONTROL, NORMAL], np.int32)
    for pre in ("gpt-2", "llama3"):  # the latter takes a word whole that is a token
        tokenizer = load(bpe(pre, ["a b", "ab c", "d e"], token_type=types))
        assert [tokenizer.piece(token) for token in tokenizer.encode("abc de")] == ["ab", "c", "Ġ", "de"]
        assert tokenizer.encode("abc", special=True) == [257]


def test_bos_and_eos_follow_the_file():
    asked = load(bpe(add_bos_token=True, add_eos_token=True, bos_token_id=7, eos_token_id=9))
    hello = asked.encode("hello")
    assert asked.encode("hello", special=True) == [7, *hello, 9]
    assert asked.encode("hello", special=True, bos=False) == hello
    assert asked.encode("hello", bos=True) == [7, *hello, 9]
    assert BPE.encode("hello", special=True) == hello
    assert BPE.encode("hello", bos=True) == [0, *hello]
    assert SPM.encode("", special=True) == [1]
    assert SPM.encode("") == []
    without = load(bpe(add_bos_token=True))
    assert not without.add_bos
    with pytest.raises(InvalidRequest, match="no BOS token"):
        without.encode("a", bos=True)


def test_defaults_where_the_file_is_silent():
    assert (SPM.bos_id, SPM.eos_id, SPM.add_bos, SPM.add_eos, SPM.space_prefix) == (1, 2, True, False, True)
    plain = load(bpe())
    assert (plain.bos_id, plain.eos_id, plain.add_bos, plain.add_eos) == (None, None, False, False)
    assert load(bpe(pre=None)).name == "default"
    assert load(bpe("llama-bpe", bos_token_id=3)).add_bos


def test_the_space_that_encode_adds_is_taken_away_again():
    assert SPM.encode("hello") == SPM.encode("hello<tool>hello")[:1]
    assert [SPM.piece(token) for token in SPM.encode(" hello")] == ["▁", "▁hello"]
    for text in (" ", "  ", " hello", "hello<tool> hello", "<tool>", "\n\nhello", "hello\n\n"):
        assert SPM.decode(SPM.encode(text)) == text
    text = "<s>hello<|end|>hello"
    assert SPM.decode(SPM.encode(text, special=True, bos=False), special=True) == text


def test_phi_3_has_no_white_space_after_its_special_tokens():
    """As in llama.cpp, which knows the model by its name too: files do not say it."""
    specials = ("<|user|>", "<|end|>", "<|endoftext|>")
    phi = load({**spm(specials=specials), "general.name": "Phi-3 Mini"})
    other = load({**spm(specials=specials), "general.name": "Other"})

    def pieces(tokenizer, text, **options):
        return [
            tokenizer.piece(token) for token in tokenizer.encode(text, special=True, bos=False, **options)
        ]

    assert pieces(phi, "<|user|>\n hello<|end|> \n<|end|>\n") == ["<|user|>", "▁hello", "<|end|>", "<|end|>"]
    assert pieces(phi, "<|endoftext|>\nhello") == ["<|endoftext|>", "▁", "<0x0A>", "hello"]
    assert pieces(other, "<|user|>\nhello") == ["<|user|>", "▁", "<0x0A>", "hello"]
    assert pieces(phi, "\nhello", after=phi.specials["<|user|>"]) == ["▁hello"]
    assert pieces(phi, "\nhello", after=phi.bos_id) == pieces(phi, "\nhello")


def test_characters_without_a_token_become_bytes():
    ids = SPM.encode("é😀")
    assert [SPM.piece(token) for token in ids] == ["▁", *(f"<0x{byte:02X}>" for byte in "é😀".encode())]
    assert SPM.token_bytes(ids[1]) == b"\xc3"
    assert SPM.decode(ids[:-1]) == "é\ufffd"


def test_a_vocabulary_without_bytes_uses_its_unknown_token():
    values = spm()
    keep = [i for i, kind in enumerate(values["token_type"]) if kind != BYTE]
    values["tokens"] = [values["tokens"][i] for i in keep]
    values["token_type"], values["scores"] = values["token_type"][keep], values["scores"][keep]
    tokenizer = load(values)
    assert [tokenizer.piece(token) for token in tokenizer.encode("heé")] == ["▁", "he", "<unk>"]
    values["token_type"] = np.where(values["token_type"] == 2, CONTROL, values["token_type"])
    assert load(values).encode("é")[-1] == 0
    values["tokens"] = ["<s>", "</s>", *values["tokens"][3:]]
    values["token_type"], values["scores"] = values["token_type"][1:], values["scores"][1:]
    assert load({**values, "bos_token_id": 0, "eos_token_id": 1}).encode("h")  # the default, 0, is <s> here


def test_a_byte_that_the_vocabulary_lacks_is_refused_not_dropped():
    values = bpe(merges=[])
    values["tokens"].remove("é")  # stands for byte 0xE9
    values["token_type"] = values["token_type"][1:]
    tokenizer = load(values)
    assert tokenizer.decode(tokenizer.encode("é")) == "é"  # is 0xC3 0xA9
    with pytest.raises(InvalidRequest, match=r"byte 0xE9 of character U\+97F3 at 2 of 'ab音'"):
        tokenizer.encode("ab音")


def test_end_tokens_are_known_by_name_and_cannot_be_forged():
    end, eot = "<|im_end|>", "</s>"
    values = bpe(specials=[end], user=[eot], eos_token_id=5)
    tokenizer = load(values)
    assert {tokenizer.piece(token) for token in tokenizer.end_ids} == {end, eot, tokenizer.piece(5)}
    assert tokenizer.specials[eot] not in tokenizer.encode(eot)
    harmony = load(bpe(specials=["<|return|>", "<|call|>", "<|end|>"]))
    assert {harmony.piece(token) for token in harmony.end_ids} == {"<|return|>", "<|call|>"}


def test_threads_may_share_a_tokenizer():
    text = "hello <|end|> world <tool>" * 50
    for tokenizer in (BPE, SPM):
        plain, special = tokenizer.encode(text), tokenizer.encode(text, special=True)
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda i, t=tokenizer: t.encode(text, special=bool(i % 2)), range(40)))
        assert results == [plain, special] * 20


def test_chunks_are_the_text():
    text = "one two\nthree  four\n\nfive " * 2000
    assert "".join(chunks(text)) == text
    assert max(map(len, chunks(text))) < CHUNK_CHARACTERS + 100
    assert list(chunks("a" * 3 * CHUNK_CHARACTERS)) == ["a" * 3 * CHUNK_CHARACTERS]


# -- requests that cannot be served --


@pytest.mark.parametrize("wrong", [None, b"a", 1, ["a"]])
def test_text_must_be_a_string(wrong):
    with pytest.raises(InvalidRequest, match="text must be a str"):
        BPE.encode(wrong)


@pytest.mark.parametrize("tokenizer", [BPE, SPM], ids=["bpe", "spm"])
def test_a_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(InvalidRequest, match=r"lone surrogate, '\\ud83d' at character 2"):
        tokenizer.encode("ab\ud83d")


@pytest.mark.parametrize("wrong", [-1, 10**6, 2**70, 1.0, "1", None, True, [1]])
def test_ids_must_be_tokens(wrong):
    for ask in (BPE.token_bytes, BPE.piece, lambda token: BPE.decode([1, token])):
        with pytest.raises(InvalidRequest, match=r"is no token; ids are integers from 0 to 261"):
            ask(wrong)


def test_ids_may_come_in_any_form():
    ids = BPE.encode("hello")
    assert BPE.decode(np.array(ids)) == BPE.decode(tuple(ids)) == BPE.decode(iter(ids)) == "hello"
    assert BPE.token_bytes(np.uint32(ids[0])) == b"hello"
    with pytest.raises(InvalidRequest, match="ids must be a list of integers, not 5"):
        BPE.decode(5)


def test_decode_never_raises_on_bytes_that_are_no_text():
    assert BPE.decode(range(256)).count("\ufffd") > 60


# -- files that are not to be trusted --

N, M = len(bpe()["tokens"]), len(spm()["tokens"])
HOSTILE = {
    "model missing": (bpe(model=None), "tokenizer.ggml.model.*missing"),
    "model unknown": (bpe(model="plamo2"), "'plamo2' are not supported, only 'gpt2'"),
    "model no string": (bpe(model=3), "tokenizer.ggml.model.*must be a string"),
    "pre no string": (bpe(pre=True), "tokenizer.ggml.pre.*must be a string"),
    "no tokens": (bpe(tokens=None), "tokenizer.ggml.tokens.*missing"),
    "empty": (bpe(tokens=[]), "tokenizer.ggml.tokens.*empty"),
    "empty spm": (spm(tokens=[]), "tokenizer.ggml.tokens.*empty"),
    "tokens numbers": (bpe(tokens=np.arange(9)), "tokenizer.ggml.tokens.*must be an array of strings"),
    "duplicate": (bpe(merges=[], tokens=["a", "b", "a"], token_type=None), "'a' is in .* twice, as 0 and 2"),
    "types short": (bpe(token_type=np.ones(3, np.int32)), f"token_type.*3 entries for a vocabulary of {N}"),
    "types long": (spm(token_type=np.ones(999, np.int32)), "token_type.*999 entries"),
    "types floats": (bpe(token_type=np.ones(N, np.float32)), "token_type.*must be an array of integers"),
    "types wild": (bpe(token_type=np.full(N, 77, np.int32)), "token_type.*token 0 has type 77"),
    "types negative": (bpe(token_type=np.full(N, -1, np.int32)), "token_type.*has type -1"),
    "types strings": (bpe(token_type=["a"]), "token_type.*must be an array of numbers"),
    "byte misspelt": (bpe(token_type=np.full(N, BYTE, np.int32)), "token_type.*not like <0x0A>"),
    "scores missing": (spm(scores=None), "tokenizer.ggml.scores.*missing"),
    "scores short": (spm(scores=np.zeros(5, np.float32)), "tokenizer.ggml.scores.*5 entries"),
    "scores nan": (spm(scores=np.full(M, np.nan, np.float32)), "scores.*token 0 is not a number"),
    "scores flags": (spm(scores=np.zeros(M, bool)), "scores.*must be an array of numbers, found bool"),
    "bos outside": (bpe(bos_token_id=N), f"bos_token_id.*is {N}, outside the vocabulary of {N}"),
    "eos negative": (bpe(eos_token_id=-1), "eos_token_id.*is -1, outside"),
    "eot outside": (spm(eot_token_id=10**6), "eot_token_id.*outside"),
    "eom outside": (spm(eom_token_id=10**6), "eom_token_id.*outside"),
    "unknown outside": (spm(unknown_token_id=2**32 - 1), "unknown_token_id.*outside"),
    "bos text": (bpe(bos_token_id="1"), "bos_token_id.*must be an integer"),
    "add_bos number": (bpe(add_bos_token=1), "add_bos_token.*must be a boolean"),
    "prefix number": (spm(add_space_prefix=1), "add_space_prefix.*must be a boolean"),
    "merges missing": ({**bpe(), "merges": None}, "tokenizer.ggml.merges.*missing"),
    "merge unknown": ({**bpe(), "merges": ["h e", "q qq"]}, "merge 1, 'q qq', needs 'qq', which is no token"),
    "merge result": ({**bpe(), "merges": ["x y"]}, "merge 0, 'x y', needs 'xy'"),
    "merge of one": ({**bpe(), "merges": ["he"]}, "merge 0 is 'he', not two tokens"),
    "merge of three": ({**bpe(), "merges": ["h e l"]}, "merge 0 is 'h e l', not two tokens"),
    "merge blank": ({**bpe(), "merges": ["", " "]}, "merge 0 is '', not two tokens"),
    "piece with nul": (spm(pieces="a\0b"), "tokenizer.ggml.tokens.*sentencepiece does not accept"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_vocabulary_is_refused_with_its_key(case):
    values, message = HOSTILE[case]
    with pytest.raises(ModelError, match=message):
        load(values)


@pytest.mark.parametrize("case", [case for case in HOSTILE if case.startswith("merge ")])
def test_merges_of_a_file_are_refused_with_the_same_errors(case, tmp_path):
    values, message = HOSTILE[case]
    write_gguf(tmp_path / "bad.gguf", dict(metadata(values)), {})
    with pytest.raises(ModelError, match=message):
        load_tokenizer(GGUF(tmp_path / "bad.gguf").metadata)


def test_a_file_gives_the_merges_of_its_values(tmp_path):
    values = bpe(specials=["<|end|>"], user=["<tool>"])
    values["token_type"][values["tokens"].index("hell")] = CONTROL  # merges of special tokens are left out
    write_gguf(tmp_path / "good.gguf", dict(metadata(values)), {})
    tokenizer = load_tokenizer(GGUF(tmp_path / "good.gguf").metadata)
    assert "hell" not in [tokenizer.piece(token) for token in tokenizer.encode("hello")]
    for text in ("hello help", "he<tool>hehe", "world"):
        assert tokenizer.encode(text) == load(values).encode(text)


@given(
    tokens=st.lists(st.text("abé", max_size=3), unique=True, max_size=20),
    merges=st.lists(st.text("abé", max_size=2).flatmap(lambda a: st.sampled_from(
        [f"{a} b", f"a {a}", f"é {a}", f"{a} {a}", a, f"{a}  b"])), max_size=6),
)  # fmt: skip
def test_merges_are_found_among_bytes_as_one_by_one(tokens, merges):
    coded = [b"".join(len(text.encode()).to_bytes(8, "little") + text.encode() for text in texts)
             for texts in (tokens, merges)]  # fmt: skip
    buffer = memoryview(b"".join(coded))
    found = Strings(buffer, 0, len(tokens), "t").merge_ids(Strings(buffer, len(coded[0]), len(merges), "m"))
    ids = {text: token for token, text in enumerate(tokens) if text}
    try:
        expected = read_merges(merges, ids, ids)
    except ModelError:
        assert found is None
    else:
        assert found.tolist() == [[ids[left], ids[right], ids[left + right]] for left, right in expected]


def test_tokenizers_are_the_same_by_their_tokens_and_types():
    values = {"user": ["<tool>"], "specials": ["<|end|>"]}
    one = load(bpe(**values))
    assert one.same_as(load(bpe(**values)))
    other = bpe(**values)
    other["token_type"][-1] = NORMAL  # "<tool>" has the same bytes as a token of the user
    assert one.same_as(load(other))
    other["token_type"][-1] = CONTROL
    assert not one.same_as(load(other))
    assert not one.same_as(load(bpe(user=["<toll>"], specials=["<|end|>"])))


def test_empty_tokens_are_harmless():
    """Real files have them; llama.cpp accepts them too. No text contains them, and they stand for nothing."""
    tokenizer = load(bpe(merges=[], user=["", ""]))
    assert tokenizer.decode([*tokenizer.encode("hi"), 256, 257]) == "hi"
    tokenizer = load(spm(user=["", ""]))
    assert tokenizer.decode([*tokenizer.encode("hi"), tokenizer.n_vocab - 1]) == "hi"


def test_types_may_be_missing():
    tokenizer = load(spm(token_type=None))
    assert tokenizer.decode(tokenizer.encode("hello é")) == "hello é"
    assert "</s>" in tokenizer.specials
    assert load(bpe(token_type=None)).decode([65]) == "A"


@pytest.mark.parametrize("score", [np.inf, -np.inf, 3e38])
def test_strange_scores_do_no_harm(score):
    values = spm()
    values["scores"][262:] = score
    assert load(values).decode(load(values).encode("hello world")) == "hello world"


@given(
    tokens=st.lists(st.text(max_size=4), max_size=12),
    types=st.lists(st.integers(-1, 8), max_size=12),
    scores=st.lists(st.floats(width=32), max_size=12),
    merges=st.lists(st.text("ab ", max_size=4), max_size=3),
    model=st.sampled_from(["gpt2", "llama"]),
    bos=st.none() | st.integers(-1, 12),
)
def test_no_vocabulary_does_worse_than_a_model_error(tokens, types, scores, merges, model, bos):
    values = {"model": model, "tokens": tokens, "merges": merges, "bos_token_id": bos,
              "token_type": np.array(types, np.int32), "scores": np.array(scores, np.float32)}  # fmt: skip
    try:
        tokenizer = load(values)
    except ModelError as refused:
        error = str(refused)
    else:
        error = "tokenizer.ggml."
        with suppress(InvalidRequest):  # a text that this vocabulary cannot express
            tokenizer.decode(tokenizer.encode("ab " + "".join(tokens), special=True))
    assert "tokenizer.ggml." in error
