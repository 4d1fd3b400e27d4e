"""What quantised weights and quantised arithmetic cost: perplexity and KL divergence, beside llama.cpp.

    python benchmarks/quantize.py qwen2.5-coder-0.5b --arithmetic
    python benchmarks/quantize.py smollm2 gemma3-270m --llamacpp /path/to/python --chunks 4
    python benchmarks/quantize.py smollm2 gemma3-270m --ggml /path/to/xllamacpp.abi3.so --chunks 4

The text is fixed: HumanEval's tasks with their solutions, and LAMBADA's passages, half and half. With
`--arithmetic` models stay as they are: each precision and type of K and V, beside float32 on the same
weights (and llama.cpp's, if llama-cpp-python is installed). Else they are quantised, by each of
`--mixes`.
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
from functools import partial
from pathlib import Path

import numpy as np

from stretto.backends.batch import Batch
from stretto.backends.llama_library import missing
from stretto.backends.llamacpp import LlamaBackend
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from stretto.evaluation.benchmarks import BENCHMARKS, read_items, read_lines
from stretto.models import read_spec
from stretto.quantize import MIXES, quantize_model
from stretto.quantize.choice import choose_formats
from stretto.text.loading import load_tokenizer
from stretto.weights import hub
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor
from stretto.weights.writer import write_gguf

CHUNK = 256
SKIPPED = 8  # tokens of a chunk that have hardly any context
MIX_NAMES = "q4_0 q4_k_m q5_k_m q6_k q8_0 iq4_xs"
ARITHMETIC = [(precision, kv) for kv in ("f32", "f16", "q8") for precision in ("standard", "high")]
HEAD = "KL divergence | same best token | perplexity | ln of the ratio"
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


def make_exact(path, target):
    """A file of the same weights in F32."""
    with GGUF(path) as file:
        tensors = {name: tensor.dequantize().astype(np.float32) for name, tensor in file.tensors.items()}
        values = dict(file.metadata) | {"general.file_type": 0}
        write_gguf(target, values, tensors, types=file.metadata.types)


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
    """Tokens cut into chunks: of programs, then as many of prose."""
    programs = read_lines(BENCHMARKS["humaneval"].data, BENCHMARKS["humaneval"].member)
    passages = read_items("lambada")
    texts = (
        "\n".join(one["prompt"] + one["canonical_solution"] for one in programs),
        "\n".join(f"{one.context} {one.word}" for one in passages[: 10 * count]),
    )
    with GGUF(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    chunks = []
    for text, n in zip(texts, (count - count // 2, count // 2), strict=True):
        ids = tokenizer.encode(text)
        chunks += [ids[at * CHUNK : (at + 1) * CHUNK] for at in range(n)]
    return chunks


def log_probabilities(backend, chunks):
    """For each chunk float32[tokens, n_vocab]; the backend is closed."""
    for ids in chunks:
        batch = Batch()
        for position, token in enumerate(ids):
            batch.add(token, position, (0,), logits=True)
        batch.place(Cells(CHUNK))
        logits = backend.forward(batch)[SKIPPED:]
        shifted = logits - logits.max(axis=-1, keepdims=True)
        yield shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    backend.close()


def kept(found, chunks, n_vocab, folder):
    """Log-probabilities in a file, which may be larger than the memory."""
    shape = len(chunks), CHUNK - SKIPPED, n_vocab
    exact = np.lib.format.open_memmap(folder / "exact.npy", "w+", np.float32, shape)
    for at, rows in enumerate(found):
        exact[at] = rows
    return exact


def native(file, threads, precision="high", kv="f32"):
    """By default with activations of 16 bits, so that hardly anything but weights is rounded."""
    return NativeBackend(file, read_spec(file, CHUNK), CHUNK, threads, kv=kv, precision=precision)


def distances(exact, found, chunks):
    """Cells of a table, and the mean KL divergence of a token with its standard error.

    The others are how often the best token is the same, the perplexity, and how far its logarithm is from
    that of the exact one, with the standard error of tokens that are paired.
    """
    far, same, nll, more = [], [], [], []
    for ids, one, other in zip(chunks, exact, found, strict=True):
        far.append((np.exp(one) * (one - other)).sum(axis=-1))
        same.append(one.argmax(axis=-1) == other.argmax(axis=-1))
        rows, targets = np.arange(len(one) - 1), np.array(ids[SKIPPED + 1 :])
        nll.append(-other[rows, targets])
        more.append(nll[-1] + one[rows, targets])
    (mean, error), (ratio, spread) = map(estimate, (far, more))
    perplexity = np.exp(np.concatenate(nll).mean(dtype=np.float64))
    shares = f"{np.concatenate(same).mean():.1%} | {perplexity:.3f} | {ratio:+.5f} ± {spread:.5f}"
    return mean, f"{mean:.5f} ± {error:.5f} | {shares}"


def estimate(parts):
    """The mean of all numbers, and its standard error."""
    numbers = np.concatenate(parts).astype(np.float64)
    return float(numbers.mean()), float(numbers.std() / len(numbers) ** 0.5)


def compare_arithmetic(model, args, folder):
    """A model as it is, with each precision and type of K and V."""
    path = hub.resolve(model)
    chunks = chunks_of(path, args.chunks)
    source = folder / f"{model}-f32.gguf"
    make_exact(path, source)
    with GGUF(source) as file:
        n_vocab = read_spec(file, CHUNK).n_vocab
        exact = kept(log_probabilities(native(file, args.threads), chunks), chunks, n_vocab, folder)
    source.unlink()
    with GGUF(path) as file:
        spec = read_spec(file, CHUNK)
        print(f"\n{model}, {len(chunks)} chunks of {CHUNK - SKIPPED} tokens")
        print(f"| arithmetic | K/V | {HEAD} |\n|---|---|---|---|---|---|", flush=True)
        print(f"| float32 | f32 | {distances(exact, exact, chunks)[1]} |", flush=True)
        ways = [(name, kv, partial(native, file, args.threads, name, kv)) for name, kv in ARITHMETIC]
        if not missing():
            theirs = [
                ("llama.cpp", kv, partial(LlamaBackend, file, spec, CHUNK, args.threads, kv))
                for kv in ("f32", "f16", "q8")
            ]
            ways += theirs
        for name, kv, opened in ways:
            found = distances(exact, log_probabilities(opened(), chunks), chunks)
            print(f"| {name} | {kv} | {found[1]} |", flush=True)


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


def compare_mixes(model, args, folder):
    """A model quantised by each mix, by us and by llama.cpp."""
    source = folder / f"{model}-f16.gguf"
    make_source(model, source)
    chunks = chunks_of(source, args.chunks)
    with GGUF(source) as file:
        n_vocab = read_spec(file, CHUNK).n_vocab
        exact = kept(log_probabilities(native(file, args.threads), chunks), chunks, n_vocab, folder)
    print(f"\n{model}, {len(chunks)} chunks of {CHUNK - SKIPPED} tokens, {args.threads} threads")
    print(f"| mix | by | MB | {HEAD} | CPU s | wall s |\n|{'---|' * 9}")
    print(
        f"| source | | {source.stat().st_size / 1e6:.1f} | {distances(exact, exact, chunks)[1]} | | |",
        flush=True,
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
            with GGUF(target) as file:
                mean, shown = distances(exact, log_probabilities(native(file, args.threads), chunks), chunks)
            figures[by] = mean, cpu
            size = target.stat().st_size / 1e6
            target.unlink()
            print(f"| {mix} | {by} | {size:.1f} | {shown} | {cpu:.2f} | {wall:.2f} |", flush=True)
        if len(figures) == 2:
            ours, theirs = figures["ours"], figures["llama.cpp"]
            ratios = f"{ours[0] / theirs[0]:.3f} | | | | {ours[1] / theirs[1]:.2f}"
            print(f"| {mix} | ratio | | {ratios} | |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="names of cached models")
    parser.add_argument("--mixes", default=MIX_NAMES)
    parser.add_argument("--arithmetic", action="store_true", help="quantise nothing; vary the arithmetic")
    parser.add_argument("--llamacpp", help="a Python with llama-cpp-python")
    parser.add_argument("--ggml", help="a library with ggml_quantize_chunk")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            compare = compare_arithmetic if args.arithmetic else compare_mixes
            compare(model, args, Path(folder))


if __name__ == "__main__":
    main()
