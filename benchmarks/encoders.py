"""Texts a second of MiniLM, beside ONNX Runtime, sentence-transformers and llama.cpp: by turns, in one run.

    python benchmarks/encoders.py FOLDER --python HF/bin/python --peer PEER/bin/python --rounds 5

FOLDER is all-MiniLM-L6-v2 as Hugging Face has it; GGUF files are written from it once, to `--cache`. HF has
onnxruntime, onnx and sentence-transformers; PEER llama-cpp-python. All get the same texts of mixed lengths,
tokenize them, and return normalised means; vectors are compared with those of sentence-transformers.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from statistics import median

import numpy as np

from peers.bench import note
from peers.process import Process
from stretto import hardware
from stretto.weights.folder import open_weights
from stretto.weights.formats import Format
from stretto.weights.writer import Quantized, write_gguf

HERE = Path(__file__).parent
SIZES = 1, 32, 256
WORDS = """the a of and in on with for from about over under between system engine model token river mountain
quickly slowly green little old new reads writes runs stops data memory cache batch sentence vector people
city garden light water music history question answer because while although every another"""


def make_texts(count, seed):
    """Texts of 3 to 200 words; most are short."""
    chosen = random.Random(seed)
    lengths = [min(200, 3 + int(chosen.expovariate(1 / 28))) for _ in range(count)]
    return [" ".join(chosen.choices(WORDS.split(), k=length)) for length in lengths]


def vocabulary(folder):
    """The metadata of a WordPiece vocabulary, as llama.cpp's converter writes it."""
    described = json.loads((folder / "tokenizer.json").read_text())
    ids = described["model"]["vocab"]
    special = {token["content"] for token in described["added_tokens"]}
    words = sorted(ids, key=ids.__getitem__)
    whole = [word in special or (word[0] == "[" and word[-1] == "]") for word in words]
    pieces = [
        word if is_whole else word[2:] if word.startswith("##") else f"\u2581{word}"
        for word, is_whole in zip(words, whole, strict=True)
    ]
    roles = {"unknown": "[UNK]", "seperator": "[SEP]", "padding": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3 if is_whole else 1 for is_whole in whole],
        **{f"tokenizer.ggml.{role}_token_id": ids[word] for role, word in roles.items()},
    }


def write_files(args):
    """The folder as GGUF files, with matrices in each format."""
    args.cache.mkdir(parents=True, exist_ok=True)
    with open_weights(args.folder) as file:
        for kind in args.formats:
            path = args.cache / f"minilm-{kind}.gguf"
            if path.exists():
                continue
            note(f"writing {path}")
            tensors = {}
            for name, tensor in file.tensors.items():
                array = tensor.dequantize().reshape(tensor.shape)
                is_small = array.ndim == 1 or name.startswith(("position_embd", "token_types"))
                tensors[name] = array if is_small else Quantized(array, Format[kind.upper()])
            write_gguf(path, dict(file.metadata) | vocabulary(args.folder), tensors)


def commands(args):
    """The libraries by name: the command of each."""
    worker, threads = str(HERE / "peers" / "encoder_worker.py"), str(args.threads)
    folder, files = str(args.folder), {kind: str(args.cache / f"minilm-{kind}.gguf") for kind in args.formats}
    found = {"stretto f32": [sys.executable, worker, "stretto", folder, threads]}
    for kind, path in files.items():
        found[f"stretto {kind}"] = [sys.executable, worker, "stretto", path, threads]
    if args.python:
        found["onnxruntime f32"] = [args.python, worker, "onnx", folder, threads]
        found["onnxruntime 8 bits"] = [args.python, worker, "onnx8", folder, threads]
        found["sentence-transformers f32"] = [args.python, worker, "sentence", folder, threads]
    for kind, path in files.items() if args.peer else ():
        found[f"llama.cpp {kind}"] = [args.peer, worker, "llamacpp", path, threads]
    return found


def measure(args):
    """Seconds of each library, size and round, and vectors of the first texts."""
    seconds, vectors, versions = {}, {}, {}
    processes = {name: Process(command).__enter__() for name, command in commands(args).items()}
    try:
        for name, process in processes.items():
            versions[name] = process.ask({"do": "about"})["version"]
        for size in SIZES:
            for number in range(args.rounds + 1):  # the first warms up
                texts = make_texts(size if number else min(size, 16), 1000 + (number if size == 1 else 0))
                for name, process in processes.items():
                    note(f"{size} texts, round {number} of {args.rounds}, {name}")
                    repeat = 8 if size == 1 else 1
                    answers = [process.ask({"do": "run", "texts": texts}) for _ in range(repeat)]
                    if number:
                        each = median(answer["seconds"] for answer in answers)
                        seconds.setdefault((name, size), []).append(each)
                    if size == SIZES[-1]:
                        vectors[name] = np.array(answers[0]["vectors"])
    finally:
        for process in processes.values():
            process.__exit__(None, None, None)
    return seconds, vectors, versions


def table(seconds, vectors, versions):
    """Lines of Markdown."""
    yield "| library | " + " | ".join(f"{size} texts" for size in SIZES) + " | cosine | version |"
    yield "|---|" + "---|" * (len(SIZES) + 2)
    exact = vectors.get("sentence-transformers f32", next(iter(vectors.values())))
    for name, version in versions.items():
        speeds = []
        for size in SIZES:
            found = sorted(size / each for each in seconds[name, size])
            speeds.append(f"{median(found):.1f} ({found[0]:.1f} – {found[-1]:.1f})")
        cosine = (exact * vectors[name]).sum(1).min()
        yield f"| {name} | {' | '.join(speeds)} | {cosine:.6f} | {version} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", help="with onnxruntime and sentence-transformers")
    parser.add_argument("--peer", help="with llama-cpp-python")
    parser.add_argument("--cache", type=Path, default=Path("minilm-files"))
    parser.add_argument("--formats", nargs="+", default=["f16", "q8_0"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--raw", type=Path, help="where samples go")
    args = parser.parse_args()
    write_files(args)
    seconds, vectors, versions = measure(args)
    cpu = hardware.probe(measure=False).cpu
    print(f"{cpu}, {args.threads} threads; texts a second, median (least – greatest)\n")
    print("\n".join(table(seconds, vectors, versions)))
    if args.raw:
        samples = [
            {"library": name, "texts": size, "seconds": found} for (name, size), found in seconds.items()
        ]
        args.raw.write_text(json.dumps({"versions": versions, "samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
