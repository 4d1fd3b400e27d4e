"""Milliseconds an image, for each model that classifies, detects or segments images.

    python benchmarks/image_tasks.py --threads 2
    python benchmarks/image_tasks.py --threads 1 --out benchmarks/raw/image_tasks-neoverse-n1.json

Images are those of the tests. A figure is the best of several runs, since other programs only ever add to
one: reading the file, preparing the input, the graph, and what follows. `graph` is ONNX Runtime's share.
`CPU` is the processors' time for all of it, which other programs hardly change.
"""

import argparse
import json
import time
from pathlib import Path

import stretto

DATA = Path(__file__).parent.parent / "tests" / "data" / "tasks"
MODELS = (
    ("efficientnet-lite0", "classify", "coffee.jpg"),
    ("orientation", "classify", "page.png"),
    ("centernet", "detect", "coffee.jpg"),
    ("centerface", "detect", "astronaut.jpg"),
    ("layout", "detect", "page.png"),
    ("u2net", "segment", "coffee.jpg"),
)


def measure(name, verb, image, threads, seconds):
    """Milliseconds of an image in all, in the graph, of the processors, and to load the model."""
    start = time.perf_counter()
    model = stretto.load(name, device="cpu", threads=threads)
    loading = time.perf_counter() - start
    run, inside = model.session.run, []

    def timed(*arguments):
        begun = time.perf_counter()
        made = run(*arguments)
        inside.append(time.perf_counter() - begun)
        return made

    model.session.run = timed
    whole, cpu, until = [], [], time.perf_counter() + seconds
    while time.perf_counter() < until or len(whole) < 3:
        begun, used = time.perf_counter(), time.process_time()
        getattr(model, verb)(image)
        whole.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - used)
    model.close()
    return [1e3 * value for value in (min(whole), min(inside), min(cpu), loading)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10, help="for each model")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    options = parser.parse_args()
    print("| model | image | ms an image | graph | CPU | load |\n|---|---|---|---|---|---|")
    rows = []
    for name, verb, file in MODELS:
        size = stretto.Image.open(DATA / file).size
        figures = measure(name, verb, DATA / file, options.threads, options.seconds)
        row = " | ".join(f"{figure:.0f}" for figure in figures)
        print(f"| `{name}` | {size[0]} × {size[1]} | {row} |", flush=True)
        names = "ms", "graph_ms", "cpu_ms", "load_ms"
        rows.append({"model": name, "image": size, **dict(zip(names, figures, strict=True))})
    if options.out:
        options.out.write_text(json.dumps({"threads": options.threads, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
