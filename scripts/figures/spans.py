"""Inline figures: the function of each name that fills `<!-- figure: NAME -->…<!-- /figure -->`."""

from collections.abc import Callable
from functools import partial

from figures import samples
from figures.samples import ARM, Q4_0, X86

LLAMACPP_TESTS = "decode 64", "prefill", "decode at depth 2048, K/V f16", "16 sequences"


def restore_ratio() -> str:
    """How many times as fast 2,048 tokens are restored as computed."""
    seconds = samples.raw("cache")["seconds"]
    return f"{min(seconds['recompute 2048']['ours']) / min(seconds['restore 2048']['ours']):.0f}"


def lookup_ratio(kind: str) -> str:
    """How many times as fast greedy decoding is with prompt lookup."""
    return f"{samples.lookup_ratio(kind):.2f} ×"


def best_format_ratios(cpu: str) -> str:
    """Stretto by llama.cpp with its own best format, for the four main tests."""
    *first, last = [f"{samples.llamacpp_pair(cpu, test, Q4_0).ratio:.1f}" for test in LLAMACPP_TESTS]
    return f"{', '.join(first)} and {last}"


def same_file_ratios() -> str:
    """The least and the greatest ratio of the four main tests on both CPUs, with the same file."""
    found = [samples.llamacpp_pair(cpu, test).ratio for cpu in (X86, ARM) for test in LLAMACPP_TESTS]
    return words(samples.span(found, 0))


def decode_ratio(model: str) -> str:
    """Decoding of a larger model on x86-64, by llama.cpp's."""
    return f"{samples.llamacpp_pair(X86, 'decode', model=model).ratio:.1f}"


def gpu_rate(test: str, who: str) -> str:
    """Tokens a second on a GPU."""
    return f"{samples.gpu(test, who):,.0f}"


def texts_a_second(library: str) -> str:
    """Sentence embeddings of 32 texts."""
    return f"{samples.encoded(library, 32):.0f}"


def choice_milliseconds(replicas: int) -> str:
    """CPU time of choosing a replica by prefix."""
    return f"{samples.simulated('prefix', replicas)['policy_us'] / 1000:.2g} ms"


def seconds(test: str, what: str) -> str:
    """Seconds of a start on a GPU."""
    return f"{samples.gpu(test, what):.1f}"


def best_path(model: str) -> str:
    """Nats a token of the best path against those of the first members, of the same sets."""
    texts = samples.raw("parallel_quality")[model]["texts"]
    best, first = (texts[way]["own"][0] for way in ("isolated, 0.1", "isolated, 0.1, first members"))
    return f"{best:.1f} against {first:.1f}"


def default_rows() -> str:
    """Rows a token with the default threshold, of both models."""
    found = samples.raw("parallel_quality").values()
    return words(samples.span(parts["texts"]["isolated, 0.15"]["rows"] for parts in found))


def words(ratios: str) -> str:
    """A span in words: “1.5 to 2.2”."""
    return ratios.replace("–", " to ")


FIGURES: dict[str, Callable[[], str]] = {
    "restore-2048": restore_ratio,
    "lookup-copying": partial(lookup_ratio, "copying"),
    "lookup-code": partial(lookup_ratio, "code editing"),
    "lookup-prose": partial(lookup_ratio, "prose"),
    "llamacpp-same-file": same_file_ratios,
    "llamacpp-q4_0-x86": partial(best_format_ratios, X86),
    "llamacpp-q4_0-arm": partial(best_format_ratios, ARM),
    "llamacpp-gemma-x86": partial(decode_ratio, "Gemma 3 270M Q4_K_M"),
    "llamacpp-0.5b-x86": partial(decode_ratio, "Qwen2.5 0.5B shape Q4_0"),
    "llamacpp-experts-arm": lambda: words(samples.span(samples.architecture_ratios("decode"))),
    "llamacpp-16-cores-decode": lambda: words(samples.span(samples.x86_ratios("tg", 8))),
    "llamacpp-16-cores-prefill": lambda: words(samples.span(samples.x86_ratios("pp", 8))),
    "llamacpp-amx-decode": lambda: words(samples.span(samples.x86_ratios("tg", 2))),
    "llamacpp-amx-prefill": lambda: words(samples.span(samples.x86_ratios("pp", 2))),
    "gpu-decode": partial(gpu_rate, "8B bf16, depth 512", "llm.generate greedy, same bits"),
    "gpu-q4_k": partial(gpu_rate, "8B Q4_K, depth 512", "llm.generate greedy, same bits"),
    "gpu-rows-16": partial(gpu_rate, "8B bf16, 16 rows, depth 512", "llm.generate greedy, same bits"),
    "gpu-rows-64": partial(gpu_rate, "8B bf16, 64 rows, depth 512", "llm.generate greedy, same bits"),
    "gpu-prefill": partial(gpu_rate, "8B bf16, prompt of 2,048", "llm.generate, same bits"),
    "gpu-load": partial(seconds, "8B bf16, cold start", "load"),
    "gpu-compile": partial(seconds, "8B bf16, cold start", "kernels compiled"),
    "gpu-second-start": partial(seconds, "8B bf16, second start", "first tokens"),
    "parallel-best-smollm2": partial(best_path, "smollm2"),
    "parallel-best-gemma3": partial(best_path, "gemma3-270m"),
    "parallel-rows": default_rows,
    "onnx-native": lambda: f"{samples.exported('native'):.0f}",
    "onnx-native-ratio": lambda: f"{samples.exported('native') / samples.exported('genai, gqa'):.1f}",
    "fleet-choice-8": partial(choice_milliseconds, 8),
    "fleet-choice-256": partial(choice_milliseconds, 256),
    "onnx-genai": lambda: f"{samples.exported('genai, gqa'):.1f}",
    "minilm-stretto": partial(texts_a_second, "stretto f32"),
    "minilm-onnxruntime": partial(texts_a_second, "onnxruntime f32"),
    "minilm-sentence-transformers": partial(texts_a_second, "sentence-transformers f32"),
}
