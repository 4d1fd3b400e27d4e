"""Tables of figures: the function of each name that fills the lines between `table: NAME` and `/table`."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from statistics import median

from figures import parallel, samples
from figures.samples import ARM, X86

CPUS = (X86, "**x86** Emerald Rapids"), (ARM, "**ARM** Neoverse N1")
DEPTH = "decode at depth 2048, K/V f16"


def markdown(rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; its first row is the head."""
    head, *body = ["|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in rows]
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *body])


def readme_cpus() -> str:
    """The default model and SmolLM2 beside llama.cpp, on the CPUs on which they were measured."""
    rows: list[list[str]] = [["2 threads", "tok/s", "times llama.cpp's speed, same file", "command"]]
    models = (samples.CODER, "decode 32"), (samples.SMOLLM2, "decode 64")
    for (model, decode), (cpu, family) in product(models, CPUS):
        tests = {
            "decode": decode,
            "prefill 512": "prefill",
            "depth 2,048": DEPTH,
            "16 sequences": "16 sequences",
        }
        pairs = {label: pair for label, test in tests.items() for pair in samples.pairs_of(cpu, test, model)}
        if pairs:
            rates = " / ".join(f"{pair.ours:,.0f}" for pair in pairs.values())
            ratios = " / ".join(f"**{pair.ratio:.1f}**" for pair in pairs.values())
            row = [f"{model}, {family}: {' / '.join(pairs)}", rates, ratios, "`benchmarks/vs_llamacpp.py`"]
            rows.append(row)
    return markdown(rows)


def readme_others() -> str:
    """The other measurements, a line each."""
    decode, prefill = (samples.span(samples.x86_ratios(test, 8)) for test in ("tg", "pp"))
    generate = "llm.generate greedy, same bits"
    one, rows = (samples.gpu(f"8B bf16, {test}", generate) for test in ("depth 512", "64 rows, depth 512"))
    prompt = samples.gpu("8B bf16, prompt of 2,048", "llm.generate, same bits")
    minilm = samples.encoded("stretto f32", 32)
    ratio = minilm / samples.encoded("onnxruntime f32", 32)
    ours = [samples.distance(model, "f16", "standard")[0] for model in ("smollm2", "gemma3-270m")]
    peer = [samples.raw("precision-neoverse-n1")["llama.cpp"][model] for model in ("smollm2", "gemma3-270m")]
    return markdown(
        [
            ["", "", ""],
            [
                "**x86** 16 cores Emerald Rapids with AMX, 135M to 1B: decode / prefill, 8 threads",
                f"**{decode} ×** / **{prefill} ×** llama.cpp",
                "`benchmarks/x86.py`",
            ],
            [
                "**GPU** H200, 8B bf16, decode / 64 sequences / prefill",
                f"{one:,.0f} / {rows:,.0f} / {prompt:,.0f} tok/s",
                "`benchmarks/gpu.py`",
            ],
            [
                "**x86** Emerald Rapids, 16 requests of mixed lengths",
                f"**{samples.batch_of_16():.1f} ×** llama.cpp's best",
                "`benchmarks/batch.py`",
            ],
            [
                "**ARM** Neoverse N1, all-MiniLM-L6-v2 F32, 32 texts",
                f"{minilm:.0f} texts/s, **{ratio:.1f} ×** ONNX Runtime",
                "`benchmarks/encoders.py`",
            ],
            [
                "distance to exact log-probabilities, SmolLM2 / Gemma, Neoverse N1",
                f"{ours[0]:.3f} / {ours[1]:.3f} (llama.cpp {peer[0]:.3f} / {peer[1]:.3f})",
                "`benchmarks/precision.py`",
            ],
        ]
    )


def llamacpp_cpus() -> str:
    """The main tests beside llama.cpp, on both CPUs."""
    tests = {"decode": "decode 64", "prefill of 512": "prefill", "decode at depth 2,048": DEPTH}
    rows: list[list[str]] = [["", "Stretto", "llama.cpp", "ratio"]]
    for name, cpu in (("**x86-64**, Emerald Rapids", X86), ("**ARM**, Neoverse N1", ARM)):
        for label, test in {**tests, "16 sequences": "16 sequences"}.items():
            pair = samples.llamacpp_pair(cpu, test)
            place = f"{name}: " if label == "decode" else ""
            rows.append([place + label, f"{pair.ours:,.0f}", f"{pair.peer:,.0f}", f"{pair.ratio:.2f}"])
        if cpu == X86:
            load = samples.llamacpp_pair(cpu, "load")
            both = [f"{seconds * 1000:,.0f}" for seconds in (load.ours_seconds, load.peer_seconds)]
            rows.append(["load to first token, ms", *both, f"{load.ratio:.2f}"])
    return markdown(rows)


def servers() -> str:
    """Streaming clients at both servers."""
    rows = [["clients", "Stretto", "llama-server", "ratio", "first token, ms", "llama-server, ms"]]
    for clients in (1, 8, 32, 128):
        (rate, first), (peer_rate, peer_first) = (
            samples.served(name, clients) for name in ("stretto", "peer")
        )
        speeds = [f"{rate:,.0f}", f"{peer_rate:,.0f}", f"{rate / peer_rate:.2f}"]
        rows.append([str(clients), *speeds, f"{first:,.0f}", f"{peer_first:,.0f}"])
    return markdown(rows)


def gpu_exact() -> str:
    """What the same bits in any batch cost on a GPU."""
    rows = [["8B model", "`exact=True`", "`exact=False`"]]
    for name in ("bf16", "Q8_0", "Q4_K", "Q4_0"):
        both = (
            samples.gpu(f"8B {name}, depth 512", f"llm.generate greedy, {who}")
            for who in ("same bits", "exact=False")
        )
        rows.append([name.replace("bf", "BF"), *(f"{rate:,.0f}" for rate in both)])
    return markdown(rows)


def distances() -> str:
    """Distances from exact log-probabilities, by cache type and precision."""
    rows = [["", "K/V", "standard", "high", "llama.cpp"]]
    for model, name in (("smollm2", "SmolLM2 135M, Q4_1"), ("gemma3-270m", "Gemma 3 270M, Q4_K_M")):
        for kv in ("f16", "f32", "q8"):
            (mean, most), (high, high_most) = (
                samples.distance(model, kv, each) for each in ("standard", "high")
            )
            digits = 4 if high < 0.01 else 3
            bold = "**" if kv == "f16" else ""
            peer = f"{samples.raw('precision-neoverse-n1')['llama.cpp'][model]:.3f}" if kv == "f16" else ""
            exact = f"{bold}{high:.{digits}f}{bold}, {high_most:.{digits - 1}f}"
            rows.append([name if kv == "f16" else "", kv, f"{mean:.3f}, {most:.2f}", exact, peer])
    return markdown(rows)


def exported() -> str:
    """ONNX graphs beside the native core."""
    names = {
        "onnxruntime, gqa": "plain onnxruntime, gqa, shared buffers",
        "stretto, generate": "`llm.generate`, backend onnx, the same folder",
        "stretto, stream": "`llm.stream`, backend onnx, the same folder",
        "generate, repack=False": "`llm.generate` with `repack=False`",
        "genai, gqa": "onnxruntime-genai, the same folder",
        "onnxruntime, cells": "plain onnxruntime, cells",
        "native": "native core on the GGUF file",
    }
    rows = [["", "prefill of 64", "decode, best step", "decode, median of 6 rounds"]]
    for engine, name in names.items():
        prefill, best, middle = (
            samples.exported(engine, figure) for figure in ("prefill", "decode", "decode_median")
        )
        rows.append([name, f"{prefill:.0f}", f"{best:.0f}", f"{middle:.1f}"])
    return markdown(rows)


def compared() -> str:
    """`stretto compare` with transformers and ONNX Runtime GenAI."""
    figures = {
        "prefill": "{:,.0f}",
        "decode": "{:.1f}",
        "batch": "{:,.0f}",
        "first token": "{:,.0f}",
        "load": "{:.1f}",
        "memory": "{:,.0f}",
    }
    rows = [
        [
            "",
            "prefill of 512, tok/s",
            "decode, tok/s",
            "8 texts together, prompts included, tok/s",
            "first token, ms",
            "load, s",
            "memory, MB",
        ]
    ]
    for engine, name in samples.COMPARED.items():
        rows.append(
            [name, *(form.format(samples.compared(engine, figure)) for figure, form in figures.items())]
        )
    return markdown(rows)


def image_tasks(*models: str) -> str:
    """CPU time of an image, by model."""
    rows = [["model", "image", "CPU time, ms"]]
    for one in samples.raw("image_tasks-neoverse-n1")["models"]:
        if one["model"] in models:
            width, height = one["image"]
            rows.append([f"`{one['model']}`", f"{width} × {height}", f"{one['cpu_ms']:,.0f}"])
    return markdown(rows)


def cold_steps() -> str:
    """Time between two passes, by what runs in the place of a pass."""
    rows = [["in the place of the forward pass", "`llm.stream`", "`seq.step()`"]]
    for name, loops in samples.raw("cold_steps-neoverse-n1")["microseconds"].items():
        rows.append([name, *(f"{median(rounds):.0f} µs" for rounds in loops.values())])
    return markdown(rows)


def affinity() -> str:
    """Hit rates and balance of live replicas, by policy."""
    runs = {(one["policy"], one["replicas"]): one for one in samples.raw("affinity")["runs"]}
    whole = runs["one", 1]["hit_rate"]
    head = ["2 replicas: hit rate", "of one replica's", "busiest / idlest"]
    rows = [["", *head, *(name.replace("2 ", "4 ") for name in head)]]
    for policy, name in (("prefix", "prefix"), ("ray", "Ray's default"), ("round robin", "round robin")):
        cells = [name]
        for one in (runs[policy, replicas] for replicas in (2, 4)):
            rate = one["hit_rate"]
            cells += [f"{rate:.3f}", f"{rate / whole:.2f}", f"{one['requests_ratio']:.2f}"]
        rows.append(cells)
    return markdown(rows)


def fleet() -> str:
    """Simulated replicas: hit rate as a share of one replica's, balance, and times to the first token."""
    names = {
        "prefix": "prefix",
        "session hash": "session hash",
        "power of two": "power of two (Ray's default)",
    }
    rows = [["", "8 replicas", "256 replicas"]]
    for policy, name in names.items():
        found = [samples.simulated(policy, replicas) for replicas in (8, 256)]
        rows.append(
            [
                name,
                *(
                    f"{one['of_one']:.2f}, {one['requests_ratio']:.2f}, "
                    f"{one['first_token_ms'][0]} / {one['first_token_ms'][1]} ms"
                    for one in found
                ),
            ]
        )
    return markdown(rows)


def instructions() -> str:
    """Cycles of vector instructions: those that take as long in one line."""
    by_cycles: defaultdict[str, list[str]] = defaultdict(list)
    for name, cycles in samples.raw("instructions-neoverse-n1")["cycles"].items():
        by_cycles[f"{cycles:.1f}"].append(name)
    return markdown([["", "cycles"], *([", ".join(names), cycles] for cycles, names in by_cycles.items())])


def cycles() -> str:
    """Cycles of a block of one column, by format and by where its weights are."""
    found = samples.raw("cycles-neoverse-n1")["cycles"]
    near, far = zip(*found.values(), strict=True)
    rows = [["16 rows × 1 column × 32, cycles", *found]]
    for name, figures in (("weights in the L1 cache", near), ("weights from memory", far)):
        rows.append([name, *(f"{figure:.1f}" for figure in figures)])
    return markdown(rows)


TABLES: dict[str, Callable[[], str]] = {
    "readme-cpus": readme_cpus,
    "readme-others": readme_others,
    "llamacpp-cpus": llamacpp_cpus,
    "servers": servers,
    "compared": compared,
    "gpu-exact": gpu_exact,
    "distances": distances,
    "exported": exported,
    "parallel-texts-smollm2": lambda: parallel.texts(samples.raw("parallel_quality")["smollm2"]),
    "parallel-texts-gemma3": lambda: parallel.texts(samples.raw("parallel_quality")["gemma3-270m"]),
    "parallel-tasks": lambda: parallel.tasks(samples.raw("parallel_quality")),
    "parallel-thresholds": lambda: parallel.thresholds(samples.raw("parallel_quality")),
    "parallel-modes": lambda: parallel.modes(samples.raw("parallel")["modes"]),
    "parallel-widths": lambda: parallel.widths(samples.raw("parallel")["widths"]),
    "parallel-pruning": lambda: parallel.pruning(samples.raw("parallel")["pruning"]),
    "parallel-costs": lambda: parallel.costs(samples.raw("parallel")["costs"]),
    "parallel-strategies": lambda: parallel.strategies(samples.raw("parallel")["strategies"]),
    "packed": lambda: parallel.packed(samples.raw("packed-neoverse-n1")["samples"]),
    "classify-time": partial(image_tasks, "efficientnet-lite0", "orientation"),
    "detect-time": partial(image_tasks, "centernet", "centerface", "layout"),
    "segment-time": partial(image_tasks, "u2net"),
    "cold-steps": cold_steps,
    "affinity": affinity,
    "fleet": fleet,
    "instructions": instructions,
    "cycles": cycles,
}
