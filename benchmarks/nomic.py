"""Vectors of nomic-embed beside transformers' and llama.cpp's of the same file: the cosine of each text.

    python benchmarks/nomic.py --reference REFERENCE/bin/python --peer PEER/bin/python

REFERENCE has transformers (5 or later), torch and gguf: the file's weights in its NomicBertModel, in float32,
with a tokenizer of its own and the scaling of positions that the model card asks for (dynamic NTK, factor 2,
beyond 2,048 tokens). PEER has xllamacpp, which has no such scaling: its texts end at 2,048 tokens. Texts are
short and long, up to 8,192 tokens, with the prefixes of the model's tasks and without; of each also the
first 256 and 64 numbers are compared (Matryoshka).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import stretto
from stretto.weights import hub

DOCS = Path(__file__).parent.parent / "docs" / "explanation"
TRAINED, LONGEST = 2048, 8192
SIZES = (768, 256, 64)
PEER = """
import json, sys, time, xllamacpp as x
path, texts = json.load(sys.stdin)
params = x.CommonParams()
params.model.path, params.embedding, params.cpuparams.n_threads, params.n_parallel = path, True, 2, 1
params.n_ctx = params.n_batch = params.n_ubatch = 2048
params.pooling_type = x.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
server, start = x.Server(params), time.perf_counter()
found = [server.handle_embeddings({"input": text}) for text in texts]
seconds = time.perf_counter() - start
found = [one if isinstance(one, dict) else json.loads(one) for one in found]
print(json.dumps([seconds, [one["data"][0]["embedding"] for one in found]]))
"""
REFERENCE = """
import json, sys, tempfile, time, torch
from pathlib import Path
from gguf import GGUFReader
from transformers import BertTokenizerFast, NomicBertConfig, NomicBertModel
path, texts = json.load(sys.stdin)
torch.set_num_threads(2)
file = GGUFReader(path)
words = file.fields["tokenizer.ggml.tokens"].contents()
vocabulary = [w if w[0] == "[" and len(w) > 1 else w[1:] if w[0] == "\\u2581" else "##" + w for w in words]
folder = Path(tempfile.mkdtemp())
(folder / "vocab.txt").write_text("\\n".join(vocabulary), "utf-8")
tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
rope = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}
config = NomicBertConfig(vocab_size=len(words), max_position_embeddings=2048, rope_parameters=rope)
model = NomicBertModel(config, add_pooling_layer=False).eval()
names = {
    "token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm", "attn_output_norm": "post_attention_layernorm",
    "layer_output_norm": "post_mlp_layernorm", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
state = {}
for tensor in file.tensors:
    values = torch.tensor(tensor.data).float()
    *layer, name, kind = tensor.name.split(".")
    layer = f"layers.{layer[1]}." if layer else ""
    if name == "attn_qkv":
        for part, rows in zip("qkv", values.chunk(3)):
            state[f"{layer}self_attn.{part}_proj.{kind}"] = rows
    else:
        state[f"{layer}{names[name]}.{kind}"] = values
model.load_state_dict(state)
# Its frequencies stay those of the longest text so far, so texts must not become shorter again.
ids = [tokenizer(text)["input_ids"] for text in texts]
found, start = [None] * len(ids), time.perf_counter()
for i in sorted(range(len(ids)), key=lambda i: len(ids[i])):
    with torch.no_grad():
        vector = model(torch.tensor([ids[i]])).last_hidden_state[0].mean(dim=0)
    found[i] = vector.tolist()
print(json.dumps([time.perf_counter() - start, found, ids]))
"""


def texts(tokenizer) -> list[str]:
    """Texts of all lengths, the longest of about 8,190 tokens."""
    page = (DOCS / "architecture.md").read_text("utf-8")
    book = "\n".join(path.read_text("utf-8") for path in sorted(DOCS.glob("*.md")))
    longest = "search_document: " + book[20000:60000]
    while len(tokenizer.encode(longest, special=True)) > LONGEST:
        longest = longest[:-20]
    return [
        "search_query: What is t-SNE?",
        "search_document: t-SNE is a dimensionality reduction algorithm by Laurens van der Maaten",
        "clustering: the quick brown fox",
        "classification: Das Wetter ist heute schön",
        "search_query: ",
        "search_document: def add(a, b):\n    return a + b",
        "A plain text without a prefix.",
        "search_document: naïve café — déjà vu, 東京 🙂",
        "search_document: " + page[:1800],
        "search_document: " + page[:6500],
        "search_document: " + book[:8800],
        "search_document: " + book[:15000],
        longest,
    ]


def ask(python: str, script: str, path: Path, given: list[str]) -> list:
    """What a script prints about the texts."""
    done = subprocess.run(
        [python, "-c", script], input=json.dumps([str(path), given]), capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: list = json.loads(done.stdout.splitlines()[-1])
    return found


def cosines(ours: np.ndarray, theirs: list) -> np.ndarray:
    """float64[n, sizes]: of the first numbers of each pair of vectors."""
    a, b = ours.astype(np.float64), np.array(theirs)
    made = [
        (a[:, :n] * b[:, :n]).sum(1) / (np.linalg.norm(a[:, :n], axis=1) * np.linalg.norm(b[:, :n], axis=1))
        for n in SIZES
    ]
    return np.stack(made, axis=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reference", metavar="PYTHON")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--least", type=int, default=0, help="tokens of the texts that are taken")
    parser.add_argument("--most", type=int, default=LONGEST)
    arguments = parser.parse_args()
    path = hub.resolve("nomic-embed")
    with stretto.load(path, threads=2) as model:
        lengths = {text: len(model.tokenizer.encode(text, special=True)) for text in texts(model.tokenizer)}
        given = [text for text, n in lengths.items() if arguments.least <= n <= arguments.most]
        start = time.perf_counter()
        ours = np.concatenate([model.embed(text) for text in given])
        seconds = time.perf_counter() - start
        ids = [model.tokenizer.encode(text, special=True) for text in given]
    print(f"Stretto {seconds:.2f} s, cosines of the first {', '.join(map(str, SIZES))} numbers", flush=True)
    for name, python, script in (
        ("transformers", arguments.reference, REFERENCE),
        ("llama.cpp", arguments.peer, PEER),
    ):
        if python is None:
            continue
        chosen = [i for i, one in enumerate(ids) if script is REFERENCE or len(one) <= TRAINED]
        other, theirs, *tokens = ask(python, script, path, [given[i] for i in chosen])
        found = cosines(ours[chosen], theirs)
        print(f"{name} {other:.2f} s, least cosine {found.min():.7f}")
        for i, row in zip(chosen, found, strict=True):
            print(f"{len(ids[i]):5} tokens  " + "  ".join(f"{one:.7f}" for one in row), flush=True)
        if tokens and tokens[0] != ids:
            print("the tokens differ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
