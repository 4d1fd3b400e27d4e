"""Tiny random models of every architecture, made by transformers and written in llama.cpp's names.

    python scripts/tiny/make.py [CASE …]             writes tests/data/tiny/CASE.gguf and CASE.npz
    python scripts/tiny/check_llamacpp.py [CASE …]   llama.cpp's logits for the same files, compared and added
    python scripts/tiny/check_xllamacpp.py [CASE …]  the newest llama.cpp's log-probabilities, compared
    python scripts/tiny/check_converter.py LLAMA_CPP [CASE …]  the same for files of llama.cpp's own converter

The first needs torch, transformers and gguf, the second llama-cpp-python, the third xllamacpp, the fourth
torch, transformers and xllamacpp; the tests, which read the files, at most xllamacpp.
"""
