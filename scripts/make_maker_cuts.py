"""Writes tests/data/maker_cuts.json: texts cut by the patterns that makers publish, with the `regex` package.

    pip install regex && python scripts/make_maker_cuts.py

It is what tiktoken's own Python implementation cuts by. The texts are those of pretokenizers.json and
more in scripts with marks and with cases. A text is stored as the lengths of its pieces.
"""

from __future__ import annotations

import json
from pathlib import Path

import regex

DATA = Path(__file__).parent.parent / "tests" / "data"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HAN_UPPER = r"[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]"
HAN_LOWER = r"[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]"
START, END = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    # "pattern" of Mistral's tekken.json
    "tekken": rf"{START}{UPPER}*{LOWER}+|{START}{UPPER}+{LOWER}*|\p{{N}}|{REST}",
    # o200k_base of OpenAI's tiktoken
    "gpt-4o": rf"{START}{UPPER}*{LOWER}+{END}|{START}{UPPER}+{LOWER}*{END}|\p{{N}}{{1,3}}|{REST}",
    # tokenization_kimi.py of Moonshot
    "kimi-k2": rf"[\p{{Han}}]+|{START}{HAN_UPPER}*{HAN_LOWER}+{END}|{START}{HAN_UPPER}+{HAN_LOWER}*{END}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
TEXTS = [
    "हिन्दी में लिखा गया पाठ, क्या यह ठीक है?",
    "தமிழ் மொழியில் எழுதப்பட்ட உரை",
    "ข้อความภาษาไทยที่มีวรรณยุกต์",
    "مَرْحَبًا بِالعَالَمِ، كَيْفَ حَالُك؟",
    "ПРИВЕТ Мир приветМИР ΑΒΓδεζ ÉCOLEétéÉTÉ ǅungla",
    "שָׁלוֹם עוֹלָם 漢字かな交じり文 한국어",
]


def main() -> None:
    """Write the file."""
    texts = [*json.loads((DATA / "pretokenizers.json").read_text("utf-8"))["texts"], *TEXTS]
    cuts = {
        name: [list(map(len, regex.findall(pattern, text, regex.V1))) for text in texts]
        for name, pattern in PATTERNS.items()
    }
    made = {"reference": f"regex {regex.__version__}", "texts": TEXTS, "cuts": cuts}
    (DATA / "maker_cuts.json").write_text(json.dumps(made, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
