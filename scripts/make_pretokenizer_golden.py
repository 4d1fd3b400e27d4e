"""Makes tests/data/pretokenizers.json: what llama.cpp makes of difficult texts under each pre-tokenizer.

    python scripts/make_pretokenizer_golden.py tests/data/pretokenizers.json

Needs `llama-cpp-python` beside Stretto. The vocabulary is made for the purpose: every two, three and four
bytes that stand side by side in the texts can merge, in an order that has nothing to do with language, so
that a cut in the wrong place gives other ids. Each name is written into a file that holds nothing but this
vocabulary, and llama.cpp reads the file.
"""

import argparse
import ctypes
import json
import os
import re
import tempfile
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import llama_cpp
import numpy as np

from stretto.text.bpe import ALPHABET
from stretto.text.pretokenizers import PRETOKENIZERS
from stretto.weights.writer import write_gguf

TEXTS = [
    "Hello world",
    "  leading and trailing   ",
    "one  two   three    four     five",
    "tab\tseparated\t\tvalues \t mixed",
    "line one\nline two\r\nline three\n\n\nline six\r\r\n end",
    "space before newline \n  \n   \n\tx",
    "trailing newlines\n\n\n",
    " \n \n",
    "\n\n  indented",
    "I'm you've he'd she'll they're it's don't",
    "I'M YOU'VE HE'D SHE'LL THEY'RE IT'S DON'T",
    "'s 't 're 've 'm 'll 'd 'S 'T 'x ''s",
    "l'été d'accord aujourd'hui Türkiye'nin o'clock",
    "1 12 123 1234 12345 123456 1234567 12345678901234567890",
    "3.14159 1,000,000.00 0x7fff 1e-10 50% $9.99 №5",
    "a1b22c333d4444 v2.0.1 2nd 3rd x86_64",
    " 7 89  1000   20000",
    "١٢٣ १२३४ ４５６７ ½ ² Ⅷ ①②",
    "def f(x: int) -> str:\n    return f\"{x!r}\"  # why\n",
    "for (int i = 0; i < n; ++i) { a[i] += b->c; }\n\n\t// done",
    "if __name__ == '__main__':\n\tmain(*args, **kwargs)",
    "SELECT * FROM t WHERE a != 'b' AND c >= 10;",
    "<div class=\"x\">&nbsp;</div><!-- note -->",
    "https://example.org/a/b?c=d&e=f#g user@example.org",
    "path/to/file.txt C:\\dir\\file /usr//bin/",
    "$%^&*()_+-=[]{};':\",./<>?`~|\\",
    "!!!???...---***___===+++",
    "wait... what?! (yes) [no] {maybe} \"quoted\" 'single'",
    "a+b=c a<b>c a|b a~b a^b a`b a$b",
    "“smart” ‘quotes’ — dash – … • « guillemets »",
    "CamelCase snake_case kebab-case SCREAMING_SNAKE mIxEdCaSe HTTPServer iPhone",
    "UPPER lower Title ALLCAPSword wordALLCAPS",
    "naïve café résumé Zürich Ærøskøbing Łódź",
    "e\u0301 vs é, n\u0303 vs ñ, Z\u0351a\u0327l\u0328go\u0489",
    "Привет, мир! Как дела? ПРИВЕТ ёлка",
    "Γειά σου Κόσμε! ΑΒΓ αβγ ώΐΊ",
    "مرحبا بالعالم، كيف حالك؟ ۱۲۳",
    "שלום עולם! מה שלומך?",
    "नमस्ते दुनिया। कैसे हो?",
    "สวัสดีชาวโลก ภาษาไทย",
    "வணக்கம் உலகம்",
    "你好,世界。今天天气很好！我有3个苹果",
    "中文English混合text测试123",
    "「引用」、（括号）：；？！～",
    "こんにちは世界。カタカナひらがな漢字ー",
    "안녕하세요 세계 ㄱㄴㄷ 한국어123",
    "ㄅㄆㄇ ｆｕｌｌｗｉｄｔｈ １２３",
    "Tiếng Việt có dấu",
    "ქართული Հայերեն አማርኛ ᎣᏏᏲ",
    "😀 👍🏽 👩\u200d👩\u200d👧\u200d👦 🇩🇪 ✈️ ☃",
    "text😀emoji😀😀 🎉!🎉",
    "\u00a0non\u2003breaking\u200bzero\ufeffwidth\u3000ideographic\u2028line",
    "\u00a0\u00a0 two \u2003 \u3000 mixed\u0085next",
    "x² + y₂ = √z ≤ ∞ ∑∫ π≈3.14 ±½ °C",
    "€100 £50 ¥1000 ₿ ¢ © ® ™",
    "control\u0001chars\u007f\u0000end",
    "𝒳𝓎𝔷 𐐀𐐨 𠀀𠀁 \U000e0001",
    "<|im_start|>user\nHi<|im_end|>\n",
    "a'b' 'c d'e'",
    "word/word //comment /\n/ ...\n/x",
    "?\n\n!\r\n.\n \n,",
    "supercalifragilisticexpialidocious",
]  # fmt: skip


def merges(texts: list[str]) -> list[str]:
    """Merges for all runs of two, three and four bytes in the texts, shorter runs first."""
    letters = {byte: character for character, byte in ALPHABET.items()}
    pairs, triples, fours = set(), set(), set()
    for text in texts:
        word = [letters[byte] for byte in text.encode()]
        pairs |= {(a, b) for a, b in pairwise(word)}
        triples |= {(a + b, c) for a, b, c in zip(word, word[1:], word[2:], strict=False)}
        fours |= {(a + b, c + d) for a, b, c, d in zip(word, word[1:], word[2:], word[3:], strict=False)}
    lines = []
    for group in (pairs, triples, fours):
        lines += sorted((" ".join(pair) for pair in group), key=lambda line: sha256(line.encode()).digest())
    return lines


def character_vocabulary(texts: list[str]) -> tuple[list[str], list[str]]:
    """Tokens and merges over characters, as Gemma 4 has them.

    A third of the characters have no token, so they become bytes. Runs of line breaks are tokens that no
    merge makes.
    """
    texts = [text.replace(" ", "\u2581") for text in texts]
    single = sorted({c for text in texts for c in text}, key=lambda c: sha256(c.encode()).digest())
    single = sorted(
        {*single[len(single) // 3 :], *"\u2581\nabcdefghijklmnopqrstuvwxyz"} - {"\0"}
    )  # ends C strings
    pairs, fours = set(), set()
    for text in texts:
        for word in re.findall(r"[^\n]+", text):
            known = ["" if c not in single else c for c in word]
            pairs |= {(a, b) for a, b in pairwise(known) if a and b}
            four = zip(known, known[1:], known[2:], known[3:], strict=False)
            fours |= {(a + b, c + d) for a, b, c, d in four if a and b and c and d}
    lines = []
    for group in (pairs, fours):
        lines += sorted((" ".join(pair) for pair in group), key=lambda line: sha256(line.encode()).digest())
    heads = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*heads, *single, "\n\n", "\n\n\n", *(line.replace(" ", "") for line in lines)]
    return list(dict.fromkeys(tokens)), lines


def reference(path: Path, texts: list[str]) -> tuple[list[list[int]], bool] | None:
    """llama.cpp's ids for each text and whether it adds BOS; None where it does not know the name."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_load_model_from_file(os.fsencode(path), params)
    if not model:
        return None
    vocab = llama_cpp.llama_model_get_vocab(model)
    rows = []
    for text in texts:
        data = text.encode()
        room = len(data) + 1
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, room, False, False)
        rows.append(list(ids[:count]))
    bos = bool(llama_cpp.llama_vocab_get_add_bos(vocab))
    llama_cpp.llama_free_model(model)
    return rows, bos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output

    @llama_cpp.llama_log_callback
    def silence(level: int, text: bytes, data: ctypes.c_void_p) -> None:
        pass

    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    lines = merges(TEXTS)
    tokens = list(dict.fromkeys([*ALPHABET, *(line.replace(" ", "") for line in lines)]))
    results: list[list[list[int]]] = []  # names of one family share an entry
    names, add_bos, unknown = {}, [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        for name in sorted(PRETOKENIZERS):
            metadata = {
                "general.architecture": "llama",
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": name,
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.merges": lines,
                "tokenizer.ggml.bos_token_id": 0,
                "tokenizer.ggml.eos_token_id": 0,
            }
            write_gguf(path, metadata)
            answer = reference(path, TEXTS)
            if answer is None:
                unknown.append(name)
                continue
            ids, bos = answer
            if ids not in results:
                results.append(ids)
            names[name] = results.index(ids)
            add_bos += [name] * bos
        characters, character_lines = character_vocabulary(TEXTS)
        types = np.full(len(characters), 1, np.int32)
        types[:3], types[3:259] = 3, 6
        values = {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "gemma4",
            "tokenizer.ggml.tokens": characters,
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.merges": character_lines,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
        }
        write_gguf(path, values)
        made = reference(path, TEXTS)
        assert made is not None
    print(f"{len(names)} names in {len(results)} families, {len(tokens)} tokens; unknown: {unknown}")
    document = {
        "reference": f"llama.cpp (llama-cpp-python {llama_cpp.__version__})",
        "texts": TEXTS,
        "merges": lines,
        "names": names,
        "add_bos": add_bos,
        "ids": results,
        "gemma4": {"tokens": characters, "merges": character_lines, "ids": made[0], "add_bos": made[1]},
    }
    entries = (f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in document.items())
    output.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
