"""Makes tests/data/tokenizers: small tokenizers as Hugging Face folders, with transformers' ids of texts.

    python scripts/make_tokenizer_folders.py tests/data/pretokenizers.json tests/data/tokenizers

Needs `transformers` and `sentencepiece`. Each vocabulary is trained on a part of the texts themselves, so
that the rest has characters that no token covers. Beside each folder's files stands golden.json: the ids of
every text, with special tokens parsed, with and without BOS and EOS.
"""

import argparse
import io
import json
import shutil
import unicodedata
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

MORE_TEXTS = [
    "",
    " ",
    "\t\n",
    "a" * 101 + " " + "b" * 100,
    "Ünïcödé ÄÖÜß ǅ İstanbul ı ﬁ ﬂ Å K",
    "[CLS] plain [SEP] text [MASK] [mask]",
    "<s>one</s><s> two </s> <mask> three<mask>four",
    "a<|im_end|>b <|im_start|> c<tool>d <tool> e",
    "e\u0301e\u0301 \u0301start \u1100\u1161\u11a8 \u0e33\u0e4d \U0001d15e",
    "many     spaces\u2581under \u2581line ▁▁ end   ",
    "中a文b 𠀀c ｶﾞ ㍿ ﷺ",
    "\u202eright\u202c \u00ad\u200dsoft \ufffd \x07bell \x1b[0m",
    "The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX! thequickbrownfox",
]
PLAIN = [
    "The quick brown fox jumps over the lazy dog and runs through the quiet town.",
    "Tokens are pieces of words; words are pieces of sentences, and sentences of thoughts.",
    "In the beginning there was a model, and the model had numbers, many numbers.",
]
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def wordpiece(texts: list[str], lowercase: bool) -> PreTrainedTokenizerFast:
    engine = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    engine.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    engine.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=900, special_tokens=names, show_progress=False)
    )
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    engine.decoder = decoders.WordPiece()
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=engine, **dict(zip(roles, names, strict=True)))


def charsmap_rules() -> str:
    """A small table of replacements, as sentencepiece reads it: compatibility forms and kinds of space."""
    rules = {chr(code): " " for code in (0x09, 0x0A, 0x0D, 0xA0, 0x2003, 0x2028, 0x3000)}
    for code in (*range(0xA8, 0x180), *range(0xFB00, 0xFB05), *range(0xFF01, 0xFF60), 0x2126, 0x212B, 0xB2):
        composed = unicodedata.normalize("NFKC", chr(code))
        if composed != chr(code):
            rules[chr(code)] = composed
        parts = unicodedata.normalize("NFD", chr(code))
        if len(parts) > 1:
            rules[parts] = composed
    rules["\u200b"] = rules["\ufeff"] = ""
    lines = []
    for before, after in sorted(rules.items()):
        lines.append("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (before, after)))
    return "\n".join(lines) + "\n"


def sentencepieces(texts: list[str], folder: Path, **options: object) -> bytes:
    """A trained model of the library, as its file."""
    file, rules = io.BytesIO(), folder / "rules.tsv"
    rules.write_text(charsmap_rules())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in texts for line in text.split("\n") if line.strip()]),
        model_writer=file,
        **(
            {"normalization_rule_name": "identity"}
            if "byte_fallback" in options
            else {"normalization_rule_tsv": str(rules)}
        ),
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    rules.unlink()
    return file.getvalue()


def unigram(data: bytes, t5: bool) -> PreTrainedTokenizerFast:
    from sentencepiece import sentencepiece_model_pb2 as messages

    proto = messages.ModelProto.FromString(data)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    heads = (
        [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        if t5
        else [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    )
    names = {name for name, _ in heads} | {"<s>", "</s>", "<unk>"}
    vocabulary = [*heads, *((text, score) for text, score in pieces if text not in names)]
    unknown = 2 if t5 else 3
    engine = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=unknown))
    engine.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("\u2581", prepend_scheme="always")]
    )
    engine.decoder = decoders.Metaspace("\u2581", prepend_scheme="always")
    single = "$A </s>" if t5 else "<s> $A </s>"
    pair = "$A </s> $B </s>" if t5 else "<s> $A </s> </s> $B </s>"
    tokens = [("</s>", 1)] if t5 else [("<s>", 0), ("</s>", 2)]
    engine.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    roles: dict[str, object] = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    if not t5:
        mask = AddedToken("<mask>", lstrip=True, special=True, normalized=False)
        roles |= {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": mask}
    return PreTrainedTokenizerFast(tokenizer_object=engine, **roles)


def bytelevel(texts: list[str], split: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE: with Qwen's words and a normaliser, or GPT-2's with a space in front and BOS."""
    engine = tokenizers.Tokenizer(models.BPE())
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    if split:
        engine.normalizer = normalizers.NFC()
        engine.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(GPT4), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=alphabet,
        show_progress=False,
        special_tokens=[] if split else names,
    )
    engine.train_from_iterator(texts, trainer)
    engine.decoder = decoders.ByteLevel()
    if split:
        engine.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
        engine.add_tokens([AddedToken("<tool>", normalized=False)])
    else:
        engine.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
    bos = None if split else "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=engine, bos_token=bos, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def character_bpe(texts: list[str], form: str) -> PreTrainedTokenizerFast:
    """SentencePiece's BPE as converted: `llama` (with a space in front), `llama-first`, `gemma` (none)."""
    spaced = [text.replace(" ", "\u2581") for text in texts]
    base = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    base.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False
    )
    base.train_from_iterator(spaced, trainer)
    model = json.loads(base.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    engine = tokenizers.Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if form == "llama":
        engine.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    elif form == "llama-first":
        engine.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme="first", split=False)
    else:
        engine.normalizer = normalizers.Replace(" ", "\u2581")
        engine.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if form != "gemma":
        steps.append(decoders.Strip(" ", 1, 0))
    engine.decoder = decoders.Sequence(steps)
    for name in ("<|im_start|>", "<|im_end|>"):
        strip = form == "llama" and name == "<|im_end|>"
        engine.add_special_tokens([AddedToken(name, normalized=False, special=True, rstrip=strip)])
    engine.add_tokens([AddedToken("<tool>", normalized=False)])
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=engine, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def save(tokenizer: PreTrainedTokenizerFast, folder: Path, texts: list[str]) -> None:
    tokenizer.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    bare = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [bare.encode(text).ids for text in texts]
    assert special == [tokenizer(text)["input_ids"] for text in texts]
    for name in ("special_tokens_map.json", "added_tokens.json"):
        (folder / name).unlink(missing_ok=True)
    golden = {
        "special": special,
        "parsed": [bare.encode(text, add_special_tokens=False).ids for text in texts],
        "pair": tokenizer(texts[0], texts[1])["input_ids"],
        "decoded": [bare.decode(ids, skip_special_tokens=True) for ids in special],
    }
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    texts = json.loads(options.texts.read_text("utf-8"))["texts"] + MORE_TEXTS
    corpus = 4 * PLAIN + texts[::2]
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    (options.folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False, indent=0))
    pieces = sentencepieces(corpus, options.folder, model_type="unigram", vocab_size=700)
    made = {
        "wordpiece": wordpiece(corpus, True),
        "wordpiece-cased": wordpiece(corpus, False),
        "unigram": unigram(pieces, False),
        "unigram-t5": unigram(pieces, True),
        "bytelevel": bytelevel(corpus, True),
        "bytelevel-gpt2": bytelevel(corpus, False),
        "llama": character_bpe(corpus, "llama"),
        "llama-first": character_bpe(corpus, "llama-first"),
        "gemma": character_bpe(corpus, "gemma"),
    }
    for name, tokenizer in made.items():
        save(tokenizer, options.folder / name, texts)
    bpe = {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False}
    for name, kind in (("unigram", {"model_type": "unigram"}), ("bpe", bpe)):
        folder = options.folder / f"sentencepiece-{name}"
        folder.mkdir()
        data = sentencepieces(corpus, options.folder, vocab_size=700, **kind)
        (folder / "tokenizer.model").write_bytes(data)
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        golden = {"plain": [processor.EncodeAsIds(text) for text in texts]}
        (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")))


if __name__ == "__main__":
    main()
