"""Pre-tokenizers: the patterns that cut the text of a BPE model into words, by `tokenizer.ggml.pre`.

A pre-tokenizer is a sequence of regular expressions. The first cuts the text into its matches and what lies
between them; each further one cuts those pieces again. A wrong cut gives other token ids without any error,
so a name that is not in this table is refused. The patterns give the ids of llama.cpp, but for the families
whose makers publish another pattern (`FOLLOW_MAKERS`): there it is the makers'. Where llama.cpp's pattern is
kept and differs from the model's original one, a comment says so.

    >>> pretokenizer("qwen2").ignore_merges
    False
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from unicodedata import category

from stretto.errors import ModelError

# Long runs of digits, cut where pre-tokenizers that group digits by three cut them anyway.
#
# Two patterns look ahead to the end of a run at each of its groups, which takes quadratic time. Parts of a
# few hundred digits, each a multiple of three from the right place, give the same groups.

Grouping = Literal["", "ascii", "words"]

PART_DIGITS = 600  # a multiple of three
_LONG = {
    "ascii": re.compile(f"[0-9]{{{2 * PART_DIGITS},}}"),
    "words": re.compile(rf"\d{{{2 * PART_DIGITS},}}"),
}


def cut_digits(text: str, grouping: Grouping) -> list[str]:
    """The text in parts that are pre-tokenized alike, apart or together.

    "ascii" groups 0 to 9 from the end of a run. "words" groups digits from the end, or from the start if the
    run goes on as a word.
    """
    if not grouping:
        return [text]
    begin, parts = 0, []
    for run in _LONG[grouping].finditer(text):
        for at in _places(text, run.start(), run.end(), grouping):
            parts.append(text[begin:at])
            begin = at
    parts.append(text[begin:])
    return parts


def _places(text: str, start: int, end: int, grouping: Grouping) -> Iterator[int]:
    if grouping == "words" and end < len(text) and _is_word(text[end]):
        first = start + PART_DIGITS
    else:
        first = start + PART_DIGITS + (end - start) % 3
    yield from range(first, end, PART_DIGITS)


def _is_word(character: str) -> bool:
    """Whether no word ends before a character, as the patterns' engine has it."""
    kind = category(character)
    return kind[0] in "LMN" or kind == "Pc"


KEY = "tokenizer.ggml.pre"


@dataclass(frozen=True)
class PreTokenizer:
    """Patterns to cut by, in order, and the name's other effects on the tokenizer."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is itself a token is taken whole
    add_bos: bool = False  # the default if the file does not say
    words: bool = True  # no piece spans several words, so a long text may be cut between two
    digits: Grouping = ""  # how it groups digits by three, if it looks ahead for that


# -- the recurring parts --

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s+(?!\S)|\s+"  # the last space before a word belongs to the word
_BREAKS = r"\s*[\r\n]+|" + _SPACES
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_PUNCTUATION}|{_SPACES}"
_TAIL = rf"{_PUNCTUATION}[\r\n]*|{_BREAKS}"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BREAKS}"
)

# As the makers publish them: upper and lower case are told apart in every script, and marks are letters.
# llama.cpp tells them apart for a-z only (any other letter is both), and a mark is none.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAPS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CASED_TAIL = rf"{_PUNCTUATION}[\r\n/]*|{_BREAKS}"
_TEKKEN = rf"{_CASED}|{_CAPS}|\p{{N}}|{_CASED_TAIL}"
_GPT4O = rf"{_CASED}{_CONTRACTION}?|{_CAPS}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
# In these llama.cpp has letters of one case only, where the originals distinguish two in every script.
_MARKED = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTION}?"
_YOUTU = rf"{_MARKED}|\p{{N}}|{_CASED_TAIL}"
_YOUTU_SCRIPTS = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_TINY_AYA = rf"\d{{1,3}}(?=(?:\d{{3}})*\b)|{_MARKED}|\p{{N}}{{1,3}}|{_CASED_TAIL}"
_UPPER_NOT_HAN = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER_NOT_HAN = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NOT_HAN}*{_LOWER_NOT_HAN}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NOT_HAN}+{_LOWER_NOT_HAN}*{_CONTRACTION}?|\p{{N}}{{1,3}}|{_TAIL}"
)
_PHRASES = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_EXAONE_MOE = rf"{_CONTRACTION}|{_PHRASES}|\p{{N}}|{_PUNCTUATION}[\r\n/]?|\s*[\r\n]|{_SPACES}"

_KANA_HAN = r"[一-龥぀-ゟ゠-ヿ]+"
# In llama.cpp the ranges of the two DeepSeek patterns never match white space, in the originals they do.
_DEEPSEEK_CJK = r"[一-龥ࠀ-一가-퟿&&[^\s]]+"
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~！-／：-～‘-‟\u3000-。&&[^\\s]]+"
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "Ὗ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇ"
    "Ꞌ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK3_WORDS = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}"
)
_SPARK_WORDS = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_JAIS2_SPACES = "|".join(
    rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
)

# -- the families --

_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_LLAMA3_TYPE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_FAMILIES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", _DEFAULT),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3_TYPE),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    ("glm4", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert "
        "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
        PreTokenizer((_GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    (
        "qwen2 deepseek-r1-qwen megrez hunyuan stablelm2 solar-open grok-2 kormo f2llmv2",
        PreTokenizer((_QWEN2,)),
    ),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                _DEEPSEEK_PUNCTUATION,
                r"(?<!\s)\s+$",  # once for each run: without the first part it is tried from every space
                _DEEPSEEK_CJK,
                r"\p{N}+",
            )
        ),
    ),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"))),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        PreTokenizer((r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK3_WORDS)),
    ),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 minimax-m2 talkie", PreTokenizer((_GPT4O,))),
    ("kimi-k2", PreTokenizer((_KIMI,))),
    ("tiny_aya cohere2moe", PreTokenizer((_TINY_AYA,), digits="words")),
    ("youtu", PreTokenizer((_YOUTU_SCRIPTS, _YOUTU), ignore_merges=True)),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,), words=False)),
    ("superbpe", PreTokenizer((r"\p{N}+", r"(?=([0-9]{3})+(?![0-9]))"), words=False, digits="ascii")),
    ("laguna", PreTokenizer((r"[^\n]+|\n+", _QWEN2))),
    ("ufakzeka", PreTokenizer((rf"{_WORD}|\p{{N}}|{_TAIL}",))),
    (
        "minicpm5",
        PreTokenizer(
            (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_TAIL}"),
            ignore_merges=True,
        ),
    ),
    ("spark2_5", PreTokenizer((r"\p{N}{1,3}", _KANA_HAN, _SPARK_WORDS, r"\p{N}"))),
    ("bloom poro-chat gpt3-finnish", PreTokenizer((_BLOOM,))),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    (
        "jais-2",
        PreTokenizer(
            (rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}[\r\n]*|\s*[\r\n]+|{_JAIS2_SPACES}|\s",)
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}"
                rf"|{_PUNCTUATION}[\r\n]*|\s*[\r\n]|{_SPACES}",
            )
        ),
    ),
    ("seed-coder", PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BREAKS}",))),
)
PRETOKENIZERS = {name: pre for names, pre in _FAMILIES for name in names.split()}
_MAKERS = "tekken gpt-4o llama4 kanana2 minimax-m2 talkie kimi-k2"
FOLLOW_MAKERS = frozenset(_MAKERS.split())  # as their makers cut, where llama.cpp cuts otherwise


def pretokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer called `name`; raises `ModelError` for an unknown one: a default would be wrong."""
    if name in PRETOKENIZERS:
        return PRETOKENIZERS[name]
    raise ModelError(
        f"the pre-tokenizer {name!r} is not known; known are {', '.join(sorted(PRETOKENIZERS))}. "
        "The file may be newer than this version of Stretto",
        field=KEY,
    )
