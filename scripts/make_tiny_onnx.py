"""Makes tests/data/onnx: tiny random decoders, exported by Optimum, with what torch and Optimum compute.

    HF_HUB_OFFLINE=1 python scripts/make_tiny_onnx.py    # with torch, transformers 4, optimum-onnx

Each folder is as Optimum lays it out: model.onnx, config.json, generation_config.json, tokenizer.json. Names
inside of the graphs are shortened, which changes nothing but the size. `expected.npz` has the tokens of a
text, the logits of torch for each of them, and greedy continuations of torch and, where that can run the
export, of ORTModelForCausalLM.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from optimum.exporters.onnx import main_export
from optimum.onnxruntime import ORTModelForCausalLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

OUT = Path(__file__).parent.parent / "tests" / "data" / "onnx"
SPECIALS = ("<|start|>", "<|end|>")
COMMON = {
    "vocab_size": 258,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
WINDOWED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"rope_scaling": LLAMA3}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {"head_dim": 16, **WINDOWED}),
}
N_TOKENS, N_GREEDY = 24, 16
TASK = "text-generation-with-past"


def make_tokenizer(folder):
    """A token for each byte, and two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIALS[0], eos_token=SPECIALS[1])
    fast.chat_template = (
        "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)


def shorten(path):
    """Give inner values and nodes short names, and drop what no runtime needs."""
    model = onnx.load(str(path))
    del model.metadata_props[:]
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    names = {}

    def short(name):
        return name if not name or name in kept else names.setdefault(name, f"v{len(names)}")

    def walk(graph):
        del graph.value_info[:]
        graph.doc_string = ""
        for tensor in graph.initializer:
            tensor.name, tensor.doc_string = short(tensor.name), ""
        for number, node in enumerate(graph.node):
            node.name, node.doc_string = f"n{number}", ""
            del node.metadata_props[:]
            node.input[:] = [short(name) for name in node.input]
            node.output[:] = [short(name) for name in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    walk(attribute.g)

    walk(model.graph)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def make(name, out):
    config_class, model_class, extra = MODELS[name]
    torch.manual_seed(1)
    model = model_class(config_class(**{**COMMON, **extra})).eval().float()
    ids = torch.randint(0, 256, (1, N_TOKENS))
    with torch.no_grad():
        logits = model(ids).logits[0].numpy()
    options = {"max_new_tokens": N_GREEDY, "do_sample": False, "pad_token_id": 257, "eos_token_id": None}
    greedy = model.generate(ids, **options)[0, N_TOKENS:].numpy()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        make_tokenizer(folder)
        main_export(folder, output=out, task=TASK, do_validation=False, local_files_only=True)
    shorten(out / "model.onnx")
    for path in out.iterdir():
        if path.name not in KEPT:
            path.unlink()
    try:
        optimum = ORTModelForCausalLM.from_pretrained(out).generate(ids, **options)[0, N_TOKENS:].numpy()
    except Exception as error:
        print(f"{name}: ORTModelForCausalLM cannot run it: {error!r:.200}")
        optimum = np.empty(0, np.int64)
    numbers = {"tokens": ids[0].numpy(), "logits": logits, "greedy": greedy, "optimum": optimum}
    np.savez_compressed(out / "expected.npz", **numbers)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    print(name, sizes, "greedy equal" if list(optimum) == list(greedy) else "greedy differs")


KEPT = {
    "model.onnx",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}

if __name__ == "__main__":
    for each in sys.argv[1:] or MODELS:
        shutil.rmtree(OUT / each, ignore_errors=True)
        (OUT / each).mkdir(parents=True)
        make(each, OUT / each)
