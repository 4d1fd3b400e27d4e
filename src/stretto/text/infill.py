"""Fill-in-the-middle prompts: the text before a gap and the text after it, between the model's own markers.

    ids = infill_prompt(llm.tokenizer, "def add(a, b):\\n    return ", "\\n\\nprint(add(1, 2))\\n")
    llm.generate(ids).text                                    # 'a + b'

Used by the server for `suffix` and `/infill`.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.errors import Unsupported
from stretto.text.tokenizer import Tokenizer

REPOSITORY = "myproject"  # a name for the repository, as llama.cpp gives it


def can_infill(tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary has the markers."""
    return tokenizer.vocabulary.infill is not None


def infill_prompt(
    tokenizer: Tokenizer,
    prefix: str,
    suffix: str,
    *,
    files: Iterable[tuple[str, str]] = (),
    suffix_first: bool = False,
) -> list[int]:
    """The ids of a prompt, with BOS as the model asks, whose continuation fills the gap.

    `files` are the names and texts of other files, which come first. Nothing in the texts is special. The
    prefix comes first, unless `suffix_first`, or the model has no marker for the middle (Codestral).
    """
    marks = tokenizer.vocabulary.infill
    if marks is None:
        raise Unsupported(
            "the vocabulary has no fill-in-the-middle tokens, so this model cannot fill a gap; leave suffix "
            "out, or take a model for code that was trained to (Qwen2.5-Coder, CodeLlama, StarCoder, …)",
            param="suffix",
        )
    before = [marks.prefix, *tokenizer.encode(prefix)]
    after = [marks.suffix, *tokenizer.encode_inside(suffix)]  # no space is put before it
    end = [] if marks.middle is None else [marks.middle]
    ids = list(tokenizer.prefix_ids) if tokenizer.add_bos else []
    ids += _other_files(tokenizer, list(files))
    return ids + (after + before if suffix_first or marks.middle is None else before + after) + end


def _other_files(tokenizer: Tokenizer, files: list[tuple[str, str]]) -> list[int]:
    marks = tokenizer.vocabulary.infill
    if not files or marks is None:
        return []
    if marks.file is None:  # as llama.cpp does without the tokens
        texts = [f"\n\n--- snippet ---\n\n{text}" for _, text in files]
        return [token for text in texts for token in tokenizer.encode(text)]
    ids = []
    if marks.repository is not None:
        ids += [marks.repository, *tokenizer.encode_inside(f"{REPOSITORY}\n")]
    for name, text in files:
        ids += [marks.file, *tokenizer.encode_inside(f"{name}\n{text}")]
    if marks.repository is not None:
        ids += [marks.file, *tokenizer.encode_inside("filename\n")]
    return ids
