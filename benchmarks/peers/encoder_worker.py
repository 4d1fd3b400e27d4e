"""Embeds texts with one library, when it is asked; `encoders.py` starts it in that library's environment.

python encoder_worker.py stretto|onnx|onnx8|sentence|llamacpp MODEL THREADS

MODEL is a GGUF file for Stretto and llama.cpp, a Hugging Face folder for the others. All take text, tokenize
it, and return L2-normalised means. Where a library pads, texts are sorted by length and taken 8 at a time:
larger batches pad more, smaller ones are slower too.
"""

import sys
from pathlib import Path

import numpy as np
from lines import Stopwatch, serve

PADDED_TEXTS = 8


def stretto(model, threads):
    import stretto

    return stretto.load(model, threads=threads).embed


def onnx8(model, threads):
    return onnx(model, threads, is_quantized=True)


def onnx(model, threads, is_quantized=False):
    import onnxruntime
    from minilm_onnx import build
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    graph = build(model, is_quantized)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def embed(texts):
        encoded = [each.ids for each in tokenizer.encode_batch(texts)]
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i]))
        made = np.empty((len(texts), 0), np.float32)
        for first in range(0, len(order), PADDED_TEXTS):
            part = order[first : first + PADDED_TEXTS]
            longest = max(len(encoded[i]) for i in part)
            ids = np.zeros((len(part), longest), np.int64)
            mask = np.zeros_like(ids)
            for row, i in enumerate(part):
                ids[row, : len(encoded[i])] = encoded[i]
                mask[row, : len(encoded[i])] = 1
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = session.run(None, inputs)[0]
            sums = (states * mask[..., None].astype(np.float32)).sum(1)
            if not made.size:
                made = np.empty((len(texts), sums.shape[1]), np.float32)
            made[part] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return made

    return embed


def sentence(model, threads):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    encoder = SentenceTransformer(model, device="cpu")
    encoder.max_seq_length = 512
    return lambda texts: encoder.encode(texts, normalize_embeddings=True, batch_size=PADDED_TEXTS)


def llamacpp(model, threads):
    import ctypes

    import llama_cpp as lc

    quiet = lc.llama_log_callback(lambda level, text, data: None)
    quiet_holder.append(quiet)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    handle = lc.llama_model_load_from_file(model.encode(), lc.llama_model_default_params())
    vocab = lc.llama_model_get_vocab(handle)
    params = lc.llama_context_default_params()
    room, most = 2048, 64
    params.n_ctx = params.n_batch = params.n_ubatch = room
    params.n_seq_max = most
    params.n_threads = params.n_threads_batch = threads
    params.embeddings = True
    context = lc.llama_init_from_model(handle, params)
    batch = lc.llama_batch_init(room, 0, 1)
    size = lc.llama_model_n_embd(handle)

    def tokens(text):
        data, ids = text.encode(), (lc.llama_token * 512)()
        return list(ids[: lc.llama_tokenize(vocab, data, len(data), ids, 512, True, False)])

    def run(texts, part, made):
        at = 0
        for sequence, i in enumerate(part):
            for position, token in enumerate(texts[i]):
                batch.token[at], batch.pos[at], batch.logits[at] = token, position, 1
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
                at += 1
        batch.n_tokens = at
        if lc.llama_encode(context, batch):
            raise RuntimeError("llama_encode failed")
        for sequence, i in enumerate(part):
            vector = np.ctypeslib.as_array(lc.llama_get_embeddings_seq(context, sequence), (size,))
            made[i] = vector / np.linalg.norm(vector)

    def embed(texts):
        encoded = [tokens(text) for text in texts]
        made = np.empty((len(texts), size), np.float32)
        part, total = [], 0
        for i, ids in enumerate(encoded):
            # Its graph attends to all tokens of a batch; batches of 512 tokens are its fastest here.
            if part and (total + len(ids) > 512 or len(part) == most):
                run(encoded, part, made)
                part, total = [], 0
            part.append(i)
            total += len(ids)
        run(encoded, part, made)
        return made

    return embed


quiet_holder = []
VERSIONS = {
    "stretto": "stretto",
    "onnx": "onnxruntime",
    "onnx8": "onnxruntime",
    "sentence": "sentence-transformers",
    "llamacpp": "llama_cpp_python",
}


def main(kind, model, threads):
    embed = globals()[kind](model, int(threads))

    def about():
        from importlib.metadata import version

        return {"version": f"{VERSIONS[kind]} {version(VERSIONS[kind])}"}

    def run(texts):
        with Stopwatch() as watch:
            vectors = embed(texts)
        return {**watch.answer, "vectors": np.round(np.asarray(vectors, np.float64), 7)[:8].tolist()}

    serve({"about": about, "run": run})


if __name__ == "__main__":
    main(*sys.argv[1:])
