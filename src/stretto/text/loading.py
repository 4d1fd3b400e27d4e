"""Loads the tokenizer of a model file or folder with the class for its kind."""

from __future__ import annotations

import os
from pathlib import Path

from stretto.errors import InvalidRequest, ModelError
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import PREFIX
from stretto.weights.folder import Folder
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import Metadata

# Chat templates by name, for models that come without one: `chat_template="chatml"`.
#
# The names are those of llama.cpp's `--chat-template`, and so are the prompts, but for two: "llama2" writes
# system messages as Meta does (llama.cpp's "llama2-sys-bos"), and "zephyr" ends turns with the vocabulary's
# own token. A model's own template knows more: tools, reasoning, images.

NAMED = {path.stem: path for path in sorted(Path(__file__).with_name("templates").iterdir())}


JSON_NAME = "tokenizer.json"
SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model")
MAX_JSON_BYTES = 256 << 20  # the largest known has 34 MB


def load_tokenizer(metadata: Metadata) -> Tokenizer:
    """The tokenizer that a GGUF file describes; `ModelError` where it is damaged or of an unsupported kind.

    load_tokenizer(GGUF("model.gguf").metadata).encode("Hello")
    """
    model = metadata.text(PREFIX + "model")
    if model == "gpt2":
        from stretto.text.bpe import BPETokenizer

        return BPETokenizer(metadata)
    if model == "gemma4":
        from stretto.text.bpe import CharacterTokenizer

        return CharacterTokenizer(metadata)
    if model == "llama":
        from stretto.text.spm import SPMTokenizer

        return SPMTokenizer(metadata)
    if model == "bert":
        from stretto.text.wordpiece import WordPieceTokenizer

        return WordPieceTokenizer(metadata)
    if model == "t5":
        from stretto.text.unigram import UnigramTokenizer

        return UnigramTokenizer(metadata)
    if model == "rwkv":
        from stretto.text.rwkv import RWKVTokenizer

        return RWKVTokenizer(metadata)
    raise ModelError(
        f"tokenizers of kind {model!r} are not supported, only 'gpt2' (BPE), 'llama' (SentencePiece), "
        "'gemma4' (BPE over characters), 'bert' (WordPiece), 't5' (Unigram) and 'rwkv'",
        field=PREFIX + "model",
    )


def load_tokenizer_folder(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder: `tokenizer.json`, or else SentencePiece's `tokenizer.model`.

    load_tokenizer_folder("Qwen3-0.6B").encode("Hello")
    """
    from stretto.text.folder_config import read_tokenizer_config
    from stretto.weights.json_file import read_object

    folder = Path(path)
    if not folder.is_dir():
        raise ModelError("no such folder", path=folder)
    config = read_tokenizer_config(folder)
    if (folder / JSON_NAME).exists():
        from stretto.text.tokenizer_json import JsonTokenizer

        return JsonTokenizer(read_object(folder / JSON_NAME, MAX_JSON_BYTES), config)
    for name in SENTENCEPIECE_NAMES:
        if (folder / name).exists():
            from stretto.text.sentencepiece_file import read_sentencepiece

            return load_tokenizer(read_sentencepiece(folder / name, config))
    raise ModelError(
        f"the folder has no tokenizer: neither {JSON_NAME} nor {SENTENCEPIECE_NAMES[0]}; transformers makes "
        f"the former: AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained(folder)",
        path=folder,
    )


def load_gguf_tokenizer(file: GGUF) -> Tokenizer:
    """The tokenizer of an open model: a GGUF file, or a folder in the form of one."""
    return load_tokenizer_folder(file.path) if isinstance(file, Folder) else load_tokenizer(file.metadata)


def load_gguf_template(file: GGUF, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template of an open model; None if it has none."""
    if isinstance(file, Folder):
        return load_template_folder(file.path, tokenizer)
    source = file.metadata.text("tokenizer.chat_template", "")
    with_tools = file.metadata.text("tokenizer.chat_template.tool_use", "")
    return _compile_template(source, with_tools, tokenizer)


def load_template_folder(path: str | os.PathLike[str], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template of a Hugging Face folder; None if it has none."""
    from stretto.text.folder_config import read_tokenizer_config

    config = read_tokenizer_config(Path(path))
    return _compile_template(config.template, config.template_with_tools, tokenizer)


def _compile_template(source: str, with_tools: str, tokenizer: Tokenizer) -> ChatTemplate | None:
    """A model's template; one for tools alone serves all conversations."""
    if not source or not with_tools:
        return make_template(source or with_tools, "", tokenizer) if source or with_tools else None
    return make_template(source, with_tools, tokenizer)


def template_source(given: str | os.PathLike[str]) -> str:
    """The source of a chat template that is given as text, as the path of a file with it, or by name.

    >>> template_source("{{ messages[0].content }}")
    '{{ messages[0].content }}'
    >>> "<|im_start|>" in template_source("chatml")
    True
    """
    if isinstance(given, str) and given in NAMED:
        return NAMED[given].read_text(encoding="utf-8").rstrip("\n")
    if isinstance(given, str) and ("{{" in given or "{%" in given):
        return given
    try:
        source = Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(
            f"chat_template has no {{{{ or {{% of Jinja, is none of {', '.join(NAMED)}, and is no file that "
            f"can be read: {error}",
            param="chat_template",
        ) from None
    if not source.strip():
        raise InvalidRequest(f"the chat template {os.fspath(given)} is empty", param="chat_template")
    return source


def make_template(source: str, with_tools: str, tokenizer: Tokenizer) -> ChatTemplate:
    """A chat template for the special tokens of a tokenizer."""

    def name_token(token: int | None) -> str:
        return "" if token is None else tokenizer.piece(token)

    bos, eos = name_token(tokenizer.bos_id), name_token(tokenizer.eos_id)
    return ChatTemplate(source, tokenizer.specials, bos=bos, eos=eos, with_tools=with_tools)
