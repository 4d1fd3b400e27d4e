"""Measures llama.cpp's image encoder in the environment of `llama-cpp-python`; `vision.py` starts it.

Its multimodal library is called through the package's own bindings: a picture is preprocessed when it is
tokenised, and encoded apart from that, which is what is measured.
"""

import ctypes
from functools import cache

import llama_cpp as lc
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
from lines import Stopwatch, serve
from pixels import picture

IMAGE = 1  # the type of a chunk

quiet = lc.llama_log_callback(lambda level, text, data: None)
lc.llama_log_set(quiet, ctypes.c_void_p(0))
lc.llama_backend_init()
mtmd.mtmd_log_set(quiet, ctypes.c_void_p(0))


def about():
    return {
        "version": f"llama-cpp-python {lc.__version__}",
        "system": lc.llama_print_system_info().decode().strip(" |"),
    }


@cache
def opened(model, mmproj, threads, flash):
    """A context of the library; it needs the language model for its vocabulary."""
    params = lc.llama_model_default_params()
    params.n_gpu_layers = 0
    text = lc.llama_model_load_from_file(model.encode(), params)
    params = mtmd.mtmd_context_params_default()
    params.use_gpu, params.warmup, params.print_timings = False, False, False
    params.n_threads, params.flash_attn_type = threads, int(flash)
    context = text and mtmd.mtmd_init_from_file(mmproj.encode(), text, params)
    if not context:
        raise RuntimeError(f"llama.cpp cannot open {mmproj} with {model}")
    return context, lc.llama_model_n_embd(text)


def encode(model, mmproj, threads, size, seed, flash=False):
    """Seconds for the vectors of one tile, the last, which shows the whole picture."""
    context, n_embd = opened(model, mmproj, threads, flash)
    pixels = picture(size, seed)
    bitmap = mtmd.mtmd_bitmap_init(size, size, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
    chunks = mtmd.mtmd_input_chunks_init()
    marker = mtmd.mtmd_default_marker()
    prompt = mtmd.mtmd_input_text(marker, len(marker), False, True)
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
    if mtmd.mtmd_tokenize(context, chunks, ctypes.byref(prompt), bitmaps, 1):
        raise RuntimeError("mtmd_tokenize failed")
    found = [mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))]
    tile = [chunk for chunk in found if mtmd.mtmd_input_chunk_get_type(chunk) == IMAGE][-1]
    with Stopwatch() as watch:
        if mtmd.mtmd_encode_chunk(context, tile):
            raise RuntimeError("mtmd_encode_chunk failed")
        data = mtmd.mtmd_get_output_embd(context)
        n = mtmd.mtmd_input_chunk_get_n_tokens(tile)
        vectors = np.ctypeslib.as_array(data, (n, n_embd)).copy()
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_bitmap_free(bitmap)
    return {**watch.answer, "vectors": n, "norms": norms(vectors)}


def norms(vectors):
    """Lengths of the first vectors, to compare with the other side's."""
    return np.linalg.norm(vectors[:8], axis=1).round(4).tolist()


if __name__ == "__main__":
    serve({"about": about, "encode": encode})
