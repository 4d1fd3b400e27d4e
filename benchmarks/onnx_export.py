"""Exported models in plain onnxruntime, beside onnxruntime-genai on the same graph, and Stretto's own core.

    python benchmarks/onnx_export.py --rounds 5 --threads 2

SmolLM2 with the file's own 4-bit numbers. All by turns, in one process; KleidiAI is off everywhere
(docs/how-to/export.md). Figures are tokens a second of the best prompt of 64 tokens and of the best single
step, which other processes disturb least, of the median round, and of the median of all steps. A session that
is opened later in a process tends to be 1 % faster: `--genai-first` has the other order. Without
onnxruntime-genai its rows are left out. `--clock cpu` counts CPU time instead, for one thread on a busy
machine. `--distance` also measures how far log-probabilities are from exact ones, with KleidiAI on and off,
and with products by the native kernels, as `stretto.load` has them unless `repack=False`.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

import stretto
from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from stretto.export import export_onnx
from stretto.weights import hub

PROMPT, DECODE, CONTEXT = 64, 32, 512
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
GOLDEN = Path(__file__).parents[1] / "tests/data/golden/smollm2-135m-instruct-q4_1.json"


def open_session(folder, threads, kleidiai=False):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("mlas.disable_kleidiai", "0" if kleidiai else "1")
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options)


class Shared:
    """The form gqa: past and present in one buffer; a step binds nothing and takes no other memory."""

    def __init__(self, session, n_vocab):
        self.session = session
        self.binding = session.io_binding()
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        for value in session.get_inputs():
            if value.name.startswith("past"):
                zeros = np.zeros((1, value.shape[1], CONTEXT, value.shape[3]), kinds[value.type])
                buffer = onnxruntime.OrtValue.ortvalue_from_numpy(zeros)
                self.binding.bind_ortvalue_input(value.name, buffer)
                self.binding.bind_ortvalue_output(value.name.replace("past_key_values", "present"), buffer)
        # Memory of single tokens, bound once and written in place; the graph counts the ones of the mask.
        self.one = {
            "input_ids": np.zeros((1, 1), np.int64),
            "position_ids": np.zeros((1, 1), np.int64),
            "attention_mask": np.zeros((1, CONTEXT), np.int64),
        }
        self.logits = np.empty((1, 1, n_vocab), np.float32)
        self.length = self.width = 0

    def reset(self):
        self.length = self.width = 0

    def step(self, ids):
        n, total = len(ids), self.length + len(ids)
        if n > 1:
            several = np.array([ids]), np.arange(self.length, total)[None], np.ones((1, total), np.int64)
            for name, array in zip(self.one, several, strict=True):
                self.binding.bind_cpu_input(name, array)
            self.binding.bind_output("logits")
        elif self.width != 1:
            self.one["attention_mask"][0] = np.arange(CONTEXT) < total
            for name, array in self.one.items():
                self.binding.bind_input(name, "cpu", 0, np.int64, array.shape, array.ctypes.data)
            place = self.logits.shape, self.logits.ctypes.data
            self.binding.bind_output("logits", "cpu", 0, np.float32, *place)
        self.one["input_ids"][0, 0], self.one["position_ids"][0, 0] = ids[0], self.length
        self.one["attention_mask"][0, total - 1] = 1
        self.session.run_with_iobinding(self.binding)
        self.length, self.width = total, n
        logits = self.logits if n == 1 else self.binding.get_outputs()[-1].numpy()
        return int(logits[0, -1].argmax())


class OverCells:
    """The form cells, updated in place."""

    def __init__(self, session):
        self.session = session
        self.pools = {
            value.name: np.zeros((CONTEXT, value.shape[1]), np.float32)
            for value in session.get_inputs()
            if value.name.startswith("cells.")
        }
        self.length = 0

    def reset(self):
        self.length = 0

    def step(self, ids):
        binding, used = self.session.io_binding(), self.length + len(ids)
        new = np.arange(self.length, used)
        binding.bind_cpu_input("tokens", np.array(ids))
        binding.bind_cpu_input("positions", new)
        binding.bind_cpu_input("cells", new)
        binding.bind_cpu_input("rows", np.array([len(ids) - 1]))
        binding.bind_cpu_input("visible", np.arange(used)[None] <= new[:, None])
        for name, pool in self.pools.items():
            place = "cpu", 0, np.float32, (used, pool.shape[1]), pool.ctypes.data
            binding.bind_input(name, *place)
            binding.bind_output(name.replace("cells.", "updated."), *place)
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)
        self.length = used
        return int(binding.get_outputs()[-1].numpy()[0, 0].argmax())


class Genai:
    """onnxruntime-genai on a folder; its own search is greedy."""

    def __init__(self, folder, threads):
        import onnxruntime_genai

        self.module = onnxruntime_genai
        config = json.loads((folder / "genai_config.json").read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
        (folder / "genai_config.json").write_text(json.dumps(config))
        self.model = onnxruntime_genai.Model(str(folder))
        self.reset()

    def reset(self):
        params = self.module.GeneratorParams(self.model)
        params.set_search_options(max_length=CONTEXT, do_sample=False)
        self.generator = self.module.Generator(self.model, params)
        self.last = None

    def step(self, ids):
        if len(ids) > 1 or ids[0] != self.last:  # a token that it chose itself has been appended already
            self.generator.append_tokens(np.array([ids], np.int32))
        self.generator.generate_next_token()
        self.last = int(self.generator.get_next_tokens()[0])
        return self.last


class Native:
    """Stretto's own core on the GGUF file, one batch a step."""

    def __init__(self, path, threads):
        self.llm = stretto.load(path, backend="native", threads=threads, cells=CONTEXT)
        self.reset()

    def reset(self):
        self.cells, self.length = Cells(CONTEXT), 0

    def step(self, ids):
        batch = Batch()
        batch.extend(ids, self.length, [0], logits=True)
        batch.place(self.cells)
        self.length += len(ids)
        return int(np.asarray(self.llm.backend.forward(batch))[0].argmax())


class Library:
    """Stretto's public calls on a folder: text and counters included, which the loops above do without."""

    def __init__(self, folder, threads, repack="auto"):
        self.llm = stretto.load(
            folder, backend="onnx", threads=threads, cells=CONTEXT, prefix_cache=False, repack=repack
        )

    def generate(self, ids, note):
        self.llm.generate(ids, max_tokens=DECODE + 1, temperature=0, ignore_eos=True, callback=note)

    def stream(self, ids, note):
        for token in self.llm.stream(ids, max_tokens=DECODE + 1, temperature=0, ignore_eos=True):
            if token.id is not None:
                note(token)


class Steps:
    """A call for each token, as a function that notes each."""

    def __init__(self, runner):
        self.runner = runner

    def __call__(self, ids, note):
        self.runner.reset()
        token = self.runner.step(ids)
        note(token)
        for _ in range(DECODE):
            token = self.runner.step([token])
            note(token)


def measure(run, clock):
    """Seconds of a prompt, and of each decode step."""
    times = [clock()]
    run(list(range(1000, 1000 + PROMPT)), lambda token: times.append(clock()))
    prompt, *steps = np.diff(times).tolist()
    return prompt, steps


def distance(session):
    """The mean distance of log-probabilities from exact ones."""
    differences = []
    for answer in json.loads(GOLDEN.read_text())["score"].values():
        ids = np.array(answer["ids"])
        feeds = {
            "input_ids": ids[None],
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
        }
        for value in session.get_inputs():
            if value.name.startswith("past"):
                kind = np.float16 if "16" in value.type else np.float32
                feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), kind)
        rows = session.run(["logits"], feeds)[0][0, :-1].astype(np.float64)
        rows -= rows.max(axis=-1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
        differences.append(np.abs(rows[np.arange(len(rows)), ids[1:]] - answer["logprobs"]))
    return float(np.concatenate(differences).mean())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--genai-first", action="store_true", help="open it before the other sessions")
    parser.add_argument("--distance", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = hub.resolve("smollm2")
    found = {"onnxruntime": onnxruntime.__version__, "threads": options.threads}
    with tempfile.TemporaryDirectory() as temporary:
        folders = {}
        for form in ("gqa", "cells"):
            folders[form] = Path(temporary) / form
            export_onnx(model, folders[form], precision="int4", form=form, context=CONTEXT)
        n_vocab = json.loads((folders["gqa"] / "config.json").read_text())["vocab_size"]
        runners = {}

        def open_genai():
            try:
                runners["genai, gqa"] = Steps(Genai(folders["gqa"], options.threads))
            except ImportError:
                print("onnxruntime-genai is not installed")

        if options.genai_first:
            open_genai()
        sessions = {form: open_session(folder, options.threads) for form, folder in folders.items()}
        library = Library(folders["gqa"], options.threads)
        unpacked = Library(folders["gqa"], options.threads, repack=False)
        found["packing"] = str(library.llm.backend.packing)
        runners |= {
            "onnxruntime, gqa": Steps(Shared(sessions["gqa"], n_vocab)),
            "onnxruntime, cells": Steps(OverCells(sessions["cells"])),
            "native": Steps(Native(model, options.threads)),
            "stretto, generate": library.generate,
            "stretto, stream": library.stream,
            "generate, repack=False": unpacked.generate,
        }
        if not options.genai_first:
            open_genai()
        figures = {name: [] for name in runners}
        order = list(runners)
        for _ in range(options.rounds):
            order = [*order[1:], order[0]]
            for name in order:
                figures[name].append(measure(runners[name], CLOCKS[options.clock]))
        found["speed"] = {}
        for name, rounds in figures.items():
            prompts, steps = zip(*rounds, strict=True)
            speeds = {
                "prefill": PROMPT / min(prompts),
                "decode": 1 / min(map(min, steps)),
                "decode_median": statistics.median(DECODE / sum(each) for each in steps),
                "decode_median_step": 1 / statistics.median(step for each in steps for step in each),
            }
            found["speed"][name] = speeds
            print(
                "{:22} prefill {prefill:7.1f}  decode {decode:6.1f}  (median round {decode_median:6.1f}, "
                "median step {decode_median_step:6.1f})".format(name, **speeds)
            )
        if "genai, gqa" in figures:
            best, middle = (
                {name: speeds[figure] for name, speeds in found["speed"].items()}
                for figure in ("decode", "decode_median_step")
            )
            found["decode_to_genai"] = best["onnxruntime, gqa"] / best["genai, gqa"]
            found["decode_to_native"] = best["onnxruntime, gqa"] / best["native"]
            found["median_steps_to_genai"] = {name: middle[name] / middle["genai, gqa"] for name in middle}
            print(
                "median steps, to genai:", {k: round(v, 3) for k, v in found["median_steps_to_genai"].items()}
            )
        if options.distance:
            found["distance"] = {}
            for precision in ("f32", "f16", "int4"):
                folder = Path(temporary) / precision
                export_onnx(model, folder, precision=precision, context=CONTEXT)
                for kleidiai in (False, True) if precision == "int4" else (False,):
                    name = f"{precision}{', KleidiAI' if kleidiai else ''}"
                    found["distance"][name] = distance(open_session(folder, options.threads, kleidiai))
                    print(f"{name:22} {found['distance'][name]:.2g} from exact log-probabilities")
            for form, each in (("gqa", library), ("cells", Library(folders["cells"], options.threads))):
                far = [
                    np.abs(each.llm.score(answer["ids"]) - answer["logprobs"])
                    for answer in json.loads(GOLDEN.read_text())["score"].values()
                ]
                found["distance"][f"{form}, native kernels"] = float(np.concatenate(far).mean())
                print(f"{form + ', native kernels':22} {np.concatenate(far).mean():.2g}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
