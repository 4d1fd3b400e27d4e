"""llama.cpp in a process of its own, with a stand-in for its package that answers, refuses, or ends."""

import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import stretto
from strange_models import N_EMBD, TOKENS, deci
from stretto.backends.llama_process import LibraryEnded, LlamaProcess
from stretto.errors import ModelError, StrettoError, Unsupported

N_VOCAB = len(TOKENS)
# Logits of a row are its token, everywhere; STAND_IN says where the process ends, and how.
PACKAGE = f"""
import ctypes, os, sys, time
from types import SimpleNamespace

WHERE, _, HOW = os.environ.get("STAND_IN", "").partition(" ")
GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_F32 = 1, 8, 0
llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def at(place):
    if place != WHERE:
        return False
    if HOW.isdigit():
        print("ggml.c:7: GGML_ASSERT(false) failed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), int(HOW))
    if HOW == "exit":
        os._exit(3)
    if HOW == "print":
        print("noise on stdout", flush=True)
    return HOW == "fail"


if at("import"):
    raise RuntimeError("no shared library")


def llama_log_set(callback, data):
    global log
    log = callback


def llama_backend_init(): pass
def llama_model_default_params(): return SimpleNamespace()
def llama_context_default_params(): return SimpleNamespace()


def llama_model_load_from_file(path, params):
    if at("load"):
        log(4, b"tensor is missing", None)
        return None
    return SimpleNamespace()


def llama_model_has_encoder(model): return False
def llama_max_parallel_sequences(): return 4
def llama_init_from_model(model, params): return at("context") or SimpleNamespace(n_ctx=params.n_ctx)
def llama_get_memory(context): return context
def llama_n_ctx(context): return context.n_ctx
def llama_model_get_vocab(model): return model
def llama_vocab_n_tokens(vocab): return {N_VOCAB}
def llama_model_n_embd(model): return {N_EMBD}
def llama_n_batch(context): return 8


def llama_batch_init(n, embd, n_seq):
    return SimpleNamespace(
        token=[0] * n, pos=[0] * n, logits=[0] * n, n_seq_id=[0] * n, seq_id=[[0] for _ in range(n)]
    )


def llama_set_embeddings(context, value): pass


def llama_decode(context, batch):
    global last
    at("decode")
    if HOW == "slow":
        time.sleep(1)
    last = batch
    return 1 if HOW == "full" else 0


def llama_get_logits_ith(context, i):
    return (ctypes.c_float * {N_VOCAB})(*[last.token[i]] * {N_VOCAB})


def llama_memory_seq_cp(memory, *arguments): at("copy")
def llama_memory_seq_rm(memory, *arguments): return not at("remove")
def llama_batch_free(batch): pass
def llama_free(context): pass
def llama_model_free(model): pass
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs the stand-in; a call says how it behaves in the processes that follow."""
    folder = tmp_path / "packages"
    (folder / "llama_cpp_python-0.0.1.dist-info").mkdir(parents=True)
    (folder / "llama_cpp_python-0.0.1.dist-info/METADATA").write_text(
        "Name: llama-cpp-python\nVersion: 0.0.1\n"
    )
    (folder / "llama_cpp.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
    return lambda behaviour="": monkeypatch.setenv("STAND_IN", behaviour)


@pytest.fixture
def path(tmp_path):
    return deci(tmp_path / "deci.gguf")


def opened(path):
    return LlamaProcess(path, 600, 1, "f16")


def rows(*tokens):
    return [(token, i, 0, i != 1) for i, token in enumerate(tokens)]


def test_calls_are_answered_by_the_other_process(package, path):
    llama = opened(path)
    assert (llama.n_ctx, llama.n_vocab, llama.n_embd, llama.n_batch) == (600, N_VOCAB, N_EMBD, 8)
    assert (llama.n_sequences, llama.is_recurrent) == (4, False)
    logits = llama.decode(rows(5, 6, 7))
    assert np.array_equal(logits, np.repeat(np.float32([[5], [7]]), N_VOCAB, axis=1))
    assert llama.decode([(5, 0, 0, False)]).shape == (0, N_VOCAB)
    assert llama.copy(0, 1, 0, 2) is None
    assert llama.remove(0, 1, 2) is True
    llama.close()
    llama.close()
    assert llama.process.returncode == 0
    with pytest.raises(StrettoError, match="closed"):
        llama.decode(rows(5))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGILL, signal.SIGSEGV, signal.SIGKILL])
@pytest.mark.parametrize("place", ["import", "load", "context"])
def test_an_end_while_it_loads_is_an_error(package, path, place, number):
    package(f"{place} {int(number)}")
    words = rf"deci.*llama-cpp-python 0\.0\.1.* ended by {number.name}: .*GGML_ASSERT\(false\) failed"
    with pytest.raises(LibraryEnded, match=words) as caught:
        stretto.load(path, backend="llamacpp", cells=64, threads=1)
    assert (caught.value.param, caught.value.value) == ("backend", "llamacpp")
    assert ("build for this processor" in str(caught.value)) == (number == signal.SIGILL)


def test_an_end_in_a_request_fails_that_request_and_those_after_it(package, path):
    package(f"decode {int(signal.SIGABRT)}")
    with stretto.load(path, backend="llamacpp", cells=64, threads=1) as llm:
        for _ in range(2):
            with pytest.raises(LibraryEnded, match="SIGABRT"):
                llm.generate("The", max_tokens=3)
    package()
    with stretto.load(path, backend="llamacpp", cells=64, threads=1) as llm:  # the caller is unharmed
        assert len(llm.generate("The", max_tokens=3, ignore_eos=True).tokens) == 3


def test_an_end_by_itself_has_a_status(package, path):
    package("copy exit")
    llama = opened(path)
    with pytest.raises(LibraryEnded, match="ended with status 3;"):
        llama.copy(0, 1, 0, 1)
    llama.close()


def test_refusals_keep_their_kind(package, path):
    package("load fail")
    with pytest.raises(ModelError, match=r"deci.gguf: llama.cpp cannot load it: tensor is missing") as caught:
        opened(path)
    assert caught.value.path == str(path)
    package("import fail")
    with pytest.raises(Unsupported, match="cannot be imported: RuntimeError: no shared library"):
        opened(path)
    package("remove fail")
    llama = opened(path)
    assert llama.remove(0) is False
    with pytest.raises(StrettoError, match=r"llama\.cpp: IndexError"):
        llama.decode(rows(*range(9)))
    assert llama.decode(rows(5)).shape == (1, N_VOCAB)  # it still answers
    llama.close()


def test_what_the_library_prints_is_no_answer(package, path, capfd):
    package("decode print")
    llama = opened(path)
    assert llama.decode(rows(5))[0, 0] == 5
    llama.close()
    assert capfd.readouterr() == ("", "")


def test_an_interrupted_caller_leaves_no_answer_behind(package, path, monkeypatch):
    package("nowhere slow")
    llama = opened(path)
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        llama.decode(rows(5))
    assert llama.decode(rows(6))[0, 0] == 6  # and not 5
    llama.close()


def test_a_model_that_nobody_holds_ends_its_process(package, path):
    llama = opened(path)
    process, gone = llama.process, weakref.ref(llama)
    del llama
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None
    assert process.returncode == 0
