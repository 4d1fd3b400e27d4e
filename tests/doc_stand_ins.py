"""Stand-ins for what the pages load: small models and files of the tests, under the names of the pages."""

import functools
import json
import shutil
import socket
from pathlib import Path

import numpy as np
import PIL.Image

import stretto
from stretto.text.template import ChatTemplate
from stretto.weights.hub.catalogue import CATALOGUE
from stretto.weights.writer import write_gguf
from tiny_adapters import head, write_peft

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
FILES = {  # names in the pages: files of the tests
    **dict.fromkeys(("cat.jpg", "coffee.jpg", "a.jpg"), DATA / "tasks" / "coffee.jpg"),
    **dict.fromkeys(("street.jpg", "dog.jpg", "b.jpg"), DATA / "tasks" / "astronaut.jpg"),
    **dict.fromkeys(("talk.wav", "a.wav", "b.wav"), DATA / "tasks" / "beckett.wav"),
    **dict.fromkeys(("models/Qwen3-0.6B", "Qwen3-0.6B"), DATA / "folders" / "qwen3"),
    "models/all-MiniLM-L6-v2": DATA / "folders" / "bert",
    "SmolLM2-135M-Instruct-ONNX": DATA / "onnx" / "llama",
    "model-f16.gguf": DATA / "tiny" / "llama.gguf",
    "mmproj.gguf": ROOT / "src" / "stretto" / "vision" / "sketch.gguf",
    "setup.py": ROOT / "scripts" / "server_fields.py",
    "notes": ROOT / "README.md",
}
PAGES = ("letter.png", "page.png", "a.png", "b.png", "download.bin")  # a corner of a scanned page, read soon
SHORT, LONG = 24, 160  # tokens, where a page sets no limit: plain texts, and those of a grammar
PORTS = ("8080", "8081")


def put_files(text: str, folder: Path, smollm2: Path) -> None:
    """Put the files that a page names into a folder."""
    for name, source in {**FILES, "model.gguf": smollm2, "mine.gguf": smollm2}.items():
        if f'"{name}"' not in text:
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
            _put_tokenizer(target)
        else:
            shutil.copy(source, target)  # not linked: a page may write to it
    for name in PAGES:
        if f'"{name}"' in text:
            with PIL.Image.open(DATA / "tasks" / "notice.png") as notice:
                notice.crop((0, 0, 320, 120)).save(folder / name, "png")
    if '"pirate' in text:
        a, b = _pair()
        tensors = {"blk.0.attn_q.weight.lora_a": a, "blk.0.attn_q.weight.lora_b": b}
        write_gguf(folder / "pirate.gguf", head("llama"), tensors)
    if '"legal-lora/"' in text:
        write_peft(folder / "legal-lora", {"model.layers.0.self_attn.q_proj": _pair()}, r=1)


def _put_tokenizer(folder: Path) -> None:
    """A small WordPiece tokenizer, for the folders of the tests that have none."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0123456789.,!?"]
    vocabulary += [f"<{number}>" for number in range(len(vocabulary), 64)]
    model = {"type": "WordPiece", "vocab": {text: token for token, text in enumerate(vocabulary)}}
    model |= {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    described = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer | {"strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]},
        "model": model,
    }
    roles = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    for name, content in {"tokenizer.json": described, "tokenizer_config.json": roles}.items():
        if not (folder / name).exists():
            (folder / name).write_text(json.dumps(content))


def _pair() -> tuple[np.ndarray, np.ndarray]:
    """A LoRA adapter of one matrix of SmolLM2, too small to change a text."""
    return np.full((1, 576), 1e-4, np.float32), np.full((576, 1), 1e-4, np.float32)


def with_free_ports(code: str) -> str:
    """The code with other ports, which no one listens on."""
    for port in PORTS:
        if port in code:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                code = code.replace(port, str(free.getsockname()[1]))
    return code


class Loader:
    """`stretto.load` with small models in place of large ones, on the CPU; closes what was loaded."""

    def __init__(self, smollm2: Path) -> None:
        self._smollm2, self._load, self._loaded = smollm2, stretto.load, []

    def __call__(self, model="smollm2", **options):
        """A model, or a stand-in for it."""
        name = str(model)
        large = name.startswith(("hf:", "qwen2.5-coder")) or name in CATALOGUE or name.endswith("Qwen3-0.6B")
        if large:
            options.pop("quantize", None)
        if options.pop("device", "auto") != "auto" or options.get("cells") == "auto":
            for option in ("kv", "exact", "cells", "experts", "gpu_memory"):
                options.pop(option, None)
        if large and str(options.get("vision", "")).startswith("hf:"):
            options["vision"] = "sketch"
        found = self._load(self._smollm2 if large else model, **options)
        if name in CATALOGUE and name.startswith("qwen3"):
            found.template = _thinking_template(found)
        self._loaded.append(found)
        return found

    def close(self) -> None:
        """Free all models."""
        for model in self._loaded:
            model.close()


def _thinking_template(model):
    """The chat template of a model that thinks, for one that has another."""
    source = (DATA / "templates" / "qwen3.jinja").read_text("utf-8")
    return ChatTemplate(source, model.tokenizer.specials, eos="<|im_end|>")


def bounded(call):
    """A call of a model with an end, so that a text without one does not fill the context."""

    @functools.wraps(call)
    def run(*arguments, **options):
        if not {"max_tokens", "options", "timeout"} & options.keys():
            options["max_tokens"] = LONG if options.keys() & {"grammar", "tools"} else SHORT
        return call(*arguments, **options)

    return run
