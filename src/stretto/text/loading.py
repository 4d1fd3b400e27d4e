"""Loads the tokenizer of a model file with the class for its kind."""

from __future__ import annotations

from stretto.errors import ModelError
from stretto.text.tokenizer import Tokenizer
from stretto.text.vocabulary import PREFIX
from stretto.weights.metadata import Metadata


def load_tokenizer(metadata: Metadata) -> Tokenizer:
    """The tokenizer that a GGUF file describes; `ModelError` where it is damaged or of an unsupported kind.

    load_tokenizer(GGUF("model.gguf").metadata).encode("Hello")
    """
    model = metadata.text(PREFIX + "model")
    if model == "gpt2":
        from stretto.text.bpe import BPETokenizer

        return BPETokenizer(metadata)
    if model == "gemma4":
        from stretto.text.characters import CharacterTokenizer

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
    raise ModelError(
        f"tokenizers of kind {model!r} are not supported, only 'gpt2' (BPE), 'llama' (SentencePiece), "
        "'gemma4' (BPE over characters), 'bert' (WordPiece) and 't5' (Unigram)",
        field=PREFIX + "model",
    )
