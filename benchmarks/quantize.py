"""Quantising beside llama.cpp: KL divergence to the source's logits, relative errors, and time.

    python benchmarks/quantize.py smollm2 gemma3-270m --llamacpp /path/to/python --chunks 4
    python benchmarks/quantize.py smollm2 gemma3-270m --ggml /path/to/xllamacpp.abi3.so --chunks 4

Sources are F16 files made of the models that are cached: dequantised, with uniform noise as wide as a step,
so that numbers do not lie on the grid of the format they came from. Both quantise the same source.
`--llamacpp` is a Python with llama-cpp-python, whose `llama_model_quantize` is called in its own process;
`--ggml` is a library with `ggml_quantize_chunk`, to which tensors are given in the formats that we choose, by
one thread. Without either only our figures are shown. Times are of the processor, all threads together: they
mean the same on a busy machine.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.quantize import MIXES, quantize_model
from stretto.quantize.choice import choose_formats
from stretto.text.loading import load_tokenizer
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor
from stretto.weights.writer import write_gguf

TEXTS = Path(__file__).parent.parent / "docs"
CHUNK = 256
SKIPPED = 8  # tokens of a chunk that have hardly any context
MIX_NAMES = "q4_0 q4_k_m q5_k_m q6_k q8_0 iq4_xs"
THEIRS = """
import ctypes, json, sys, time, llama_cpp
source, target, file_type, threads = sys.argv[1:]
quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
llama_cpp.llama_log_set(quiet, None)
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread = int(file_type), int(threads)
wall, cpu = time.perf_counter(), time.process_time()
failed = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
print(json.dumps([failed, time.process_time() - cpu, time.perf_counter() - wall]))
"""


def make_source(model, target):
    """An F16 file of a cached model."""
    rng = np.random.default_rng(1)
    with GGUF(hub.resolve(model)) as file:
        tensors = {}
        for name, tensor in file.tensors.items():
            numbers = tensor.dequantize()
            if numbers.ndim < 2 or "norm" in name:
                tensors[name] = numbers.astype(np.float32)
                continue
            groups = numbers.reshape(-1, 32 if tensor.format.block == 32 else 16)
            gaps = np.diff(np.sort(groups, axis=1), axis=1)
            step = np.where(gaps > 1e-9, gaps, np.inf).min(axis=1, keepdims=True)
            noise = rng.uniform(-0.5, 0.5, groups.shape) * np.where(np.isfinite(step), step, 0)
            tensors[name] = (groups + noise).reshape(numbers.shape).astype(np.float16)
        values = dict(file.metadata) | {"general.file_type": 1}
        write_gguf(target, values, tensors, types=file.metadata.types)


def chunks_of(path, count):
    """Tokens of our own documentation, cut into chunks."""
    text = "\n".join(page.read_text() for page in sorted(TEXTS.rglob("*.md")))
    with GGUF(path) as file:
        ids = load_tokenizer(file.metadata).encode(text)
    return [ids[at * CHUNK : (at + 1) * CHUNK] for at in range(count)]


def log_probabilities(path, chunks):
    """For each chunk float32[tokens, n_vocab], with activations of 16 bits."""
    with GGUF(path) as file:
        backend = NativeBackend(file, read_spec(file, CHUNK), CHUNK, 2, precision="high")
        for ids in chunks:
            batch = Batch()
            for position, token in enumerate(ids):
                batch.add(token, position, (0,), logits=True)
            batch.place(Cells(CHUNK))
            logits = backend.forward(batch)[SKIPPED:]
            shifted = logits - logits.max(axis=-1, keepdims=True)
            yield shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        backend.close()


def divergence(exact, path, chunks):
    """The mean KL divergence of a token, its standard error, and how often the best token is the same."""
    far, same = [], []
    for one, other in zip(exact, log_probabilities(path, chunks), strict=True):
        far.append((np.exp(one) * (one - other)).sum(axis=-1))
        same.append(one.argmax(axis=-1) == other.argmax(axis=-1))
    all_far = np.concatenate(far)
    return (
        float(all_far.mean()),
        float(all_far.std() / len(all_far) ** 0.5),
        float(np.concatenate(same).mean()),
    )


def quantise_ours(source, target, mix, threads):
    wall, cpu = time.perf_counter(), time.process_time()
    quantize_model(source, target, mix, replace=True, threads=threads)
    return time.process_time() - cpu, time.perf_counter() - wall


def quantise_theirs(python, source, target, mix, threads):
    command = [python, "-c", THEIRS, str(source), str(target), str(MIXES[mix].file_type), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    failed, cpu, wall = json.loads(done.stdout.splitlines()[-1])
    if failed:
        sys.exit(f"llama.cpp does not write {mix}")
    return cpu, wall


def quantise_by_ggml(library, source, target, mix):
    """Tensors in the formats that we choose, by llama.cpp's own function for rows."""
    wall, cpu = time.perf_counter(), time.process_time()
    quantise = ctypes.CDLL(library).ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    quantise.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    with GGUF(source) as file:
        formats = choose_formats(MIXES[mix], file.metadata, file.tensors)
        tensors = {}
        for name, tensor in file.tensors.items():
            fmt, columns = formats[name], tensor.shape[-1]
            if fmt is tensor.format:
                tensors[name] = tensor
                continue
            numbers = np.ascontiguousarray(tensor.dequantize(), np.float32)
            data = np.empty((*tensor.shape[:-1], fmt.row_bytes(columns)), np.uint8)
            rows = numbers.size // columns
            if (
                quantise(fmt.value, numbers.ctypes.data, data.ctypes.data, 0, rows, columns, None)
                != data.nbytes
            ):
                sys.exit(f"{library} does not write {fmt.name}")
            tensors[name] = Tensor(name, tensor.shape, fmt, 0, data)
        values = dict(file.metadata) | {"general.file_type": MIXES[mix].file_type}
        write_gguf(target, values, tensors, types=file.metadata.types)
    return time.process_time() - cpu, time.perf_counter() - wall


def compare(model, args, folder):
    source = folder / f"{model}-f16.gguf"
    make_source(model, source)
    chunks = chunks_of(source, args.chunks)
    exact = list(log_probabilities(source, chunks))
    print(f"\n{model}, {args.chunks * (CHUNK - SKIPPED)} tokens, {args.threads} threads")
    print(
        "| mix | by | MB | KL divergence | same best token | CPU s | wall s |\n|---|---|---|---|---|---|---|"
    )
    for mix in args.mixes.split():
        figures = {}
        for by in ("ours", "llama.cpp") if args.llamacpp or args.ggml else ("ours",):
            target = folder / f"{model}-{mix}.gguf"
            if by == "ours":
                cpu, wall = quantise_ours(source, target, mix, args.threads)
            elif args.ggml:
                cpu, wall = quantise_by_ggml(args.ggml, source, target, mix)
            else:
                cpu, wall = quantise_theirs(args.llamacpp, source, target, mix, args.threads)
            mean, error, same = divergence(exact, target, chunks)
            figures[by] = mean, cpu
            print(
                f"| {mix} | {by} | {target.stat().st_size / 1e6:.1f} | {mean:.5f} ± {error:.5f} | {same:.3f} "
                f"| {cpu:.2f} | {wall:.2f} |",
                flush=True,
            )
        if len(figures) == 2:
            ours, theirs = figures["ours"], figures["llama.cpp"]
            print(
                f"| {mix} | ratio | | {ours[0] / theirs[0]:.3f} | | {ours[1] / theirs[1]:.2f} | |", flush=True
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="names of cached models")
    parser.add_argument("--mixes", default=MIX_NAMES)
    parser.add_argument("--llamacpp", help="a Python with llama-cpp-python")
    parser.add_argument("--ggml", help="a library with ggml_quantize_chunk")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            compare(model, args, Path(folder))


if __name__ == "__main__":
    main()
