"""Run exported models in other runtimes: onnxruntime-genai, and Optimum's ORTModelForCausalLM.

    python scripts/check_onnx_export.py make FOLDER            # with Stretto, onnx and onnxruntime
    PEER/bin/python scripts/check_onnx_export.py genai FOLDER
    PEER/bin/python scripts/check_onnx_export.py optimum FOLDER

`make` exports SmolLM2 and tiny models in the form gqa, and writes what they should answer: the greedy
continuations of the golden file (with 4 bits, the margins of steps that differ are printed), and
those of the reference backend. The others need nothing of Stretto, so that each runs in a Python of its own.
"""

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TINY = "llama", "llama-llama3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3-window", "smollm3"
NEW_TOKENS = 16
ANSWERS = "answers.json"


def make(folder):
    sys.path.insert(0, str(ROOT / "tests"))
    import numpy as np

    from onnx_exports import with_vocabulary
    from stretto.export import export_onnx
    from stretto.weights import hub
    from tiny_models import answer, text_logits, tiny_backend

    folder.mkdir(parents=True, exist_ok=True)
    golden = json.loads((ROOT / "tests/data/golden/smollm2-135m-instruct-q4_1.json").read_text())
    cases = [
        {"prompt": each["ids"], "wanted": each["generated"], "margins": each["margin"]}
        for each in golden["greedy"].values()
    ]
    texts = [(case["text"], case["ids_special"]) for case in golden["tokenize"]]
    answers = {}
    for precision in ("f32", "int4"):
        export_onnx(
            hub.resolve("smollm2"), folder / f"smollm2-{precision}", precision=precision, replace=True
        )
        answers[f"smollm2-{precision}"] = {"cases": cases, "texts": texts}
    for name in TINY:
        file = with_vocabulary(name, folder / f"{name}.gguf")
        export_onnx(file, folder / name, precision="f32", replace=True)
        prompt = [int(token) for token in answer(name, "tokens.0")[:8]]
        wanted, margins = [], []
        for _ in range(NEW_TOKENS):
            row = text_logits(tiny_backend(name), np.array(prompt + wanted))[-1]
            best = np.argsort(row)[::-1]
            wanted.append(int(best[0]))
            margins.append(float(row[best[0]] - row[best[1]]))
        case = {"prompt": prompt, "wanted": wanted, "margins": margins}
        answers[name] = {"cases": [case], "texts": []}
    (folder / ANSWERS).write_text(json.dumps(answers))
    print(f"{len(answers)} models in {folder}")


class Skipped(Exception):
    """A model that the runtime cannot take, for a reason of its own."""


class Genai:
    """onnxruntime-genai."""

    def __init__(self, path):
        import onnxruntime_genai

        self.module = onnxruntime_genai
        self.model = onnxruntime_genai.Model(str(path))
        self.tokenizer = onnxruntime_genai.Tokenizer(self.model)

    def encode(self, text):
        return self.tokenizer.encode(text).tolist()

    def generate(self, prompt, n):
        import numpy as np

        params = self.module.GeneratorParams(self.model)
        params.set_search_options(max_length=len(prompt) + n, do_sample=False)
        generator = self.module.Generator(self.model, params)
        generator.append_tokens(np.array([prompt], np.int32))
        made = []
        while len(made) < n and not generator.is_done():
            generator.generate_next_token()
            made.append(int(generator.get_next_tokens()[0]))
        return made


class Optimum:
    """Optimum on ONNX Runtime."""

    def __init__(self, path):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import onnxruntime
        from optimum.onnxruntime import ORTModelForCausalLM
        from transformers import AutoTokenizer

        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("mlas.disable_kleidiai", "1")
        self.model = ORTModelForCausalLM.from_pretrained(path, session_options=options)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        config = json.loads((path / "config.json").read_text())
        sizes = self.model.num_key_value_heads, self.model.embed_size_per_head
        if sizes != (config["num_key_value_heads"], config["head_dim"]):
            raise Skipped(f"Optimum would make a past of {sizes[0]} heads of {sizes[1]} for this model type")

    def encode(self, text):
        return self.tokenizer(text)["input_ids"]

    def generate(self, prompt, n):
        import torch

        ids = torch.tensor([prompt])
        made = self.model.generate(ids, max_new_tokens=n, do_sample=False)
        return made[0].tolist()[len(prompt) :]


def check(folder, runtime):
    answers = json.loads((folder / ANSWERS).read_text())
    failed = 0
    for name, answer in answers.items():
        try:
            failed += not _check_one(runtime(folder / name), name, answer)
        except Skipped as reason:
            print(f"{name}: skipped: {reason}", flush=True)
        except Exception as error:  # of another library
            failed += 1
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
    return failed


def _check_one(model, name, answer):
    wrong = [text for text, ids in answer["texts"] if model.encode(text) != ids]
    notes, good = [], not wrong
    for case in answer["cases"]:
        wanted = case["wanted"][:NEW_TOKENS]
        made = model.generate(case["prompt"], len(wanted))
        at = next((i for i, pair in enumerate(zip(made, wanted, strict=False)) if pair[0] != pair[1]), None)
        if at is None and len(made) >= min(len(wanted), 1):
            notes.append(f"{len(made)} of {len(wanted)} tokens equal")
        else:
            margin = case["margins"][at] if at is not None else float("inf")
            notes.append(f"differs at {at} (margin {margin:.3f})")
            good = good and margin < (0.4 if "int4" in name else 1e-3)
    tokens = f"{len(answer['texts']) - len(wrong)} of {len(answer['texts'])} texts tokenized alike; "
    print(
        f"{name}: {tokens if answer['texts'] else ''}{', '.join(notes)}{'' if good else '  FAILED'}",
        flush=True,
    )
    return good


if __name__ == "__main__":
    command, target = sys.argv[1], Path(sys.argv[2])
    if command == "make":
        make(target)
    else:
        sys.exit(min(1, check(target, {"genai": Genai, "optimum": Optimum}[command])))
