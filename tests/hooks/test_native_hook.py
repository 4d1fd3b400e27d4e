"""Hooks in native code: the same tokens from both loops."""

import ctypes
import gc
import shutil
import subprocess
import weakref
from pathlib import Path

import numpy as np
import pytest

from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.hooks import NativeHook
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "native_hook.c"
SOURCE = r"""
#include <math.h>
#include <stdint.h>

void nothing(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) {}

void add(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) {
    for (int32_t i = 0; i < n_vocab; ++i) logits[i] += ((const float *)state)[i];
}

void twice(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) {
    for (int32_t i = 0; i < n_vocab; ++i) logits[i] *= 2;
}

/* What was seen: the number of calls, the last n, n_vocab, and a sum over the tokens. */
void record(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) {
    int64_t *seen = state;
    seen[0] += 1;
    seen[1] = n;
    seen[2] = n_vocab;
    for (int32_t i = 0; i < n; ++i) seen[3] += (int64_t)(i + 1) * tokens[i];
}

void spoil(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) { logits[0] = NAN; }
"""
HOOK = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_float),
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.c_int32,
    ctypes.c_void_p,
)
PROMPT = [5, 17, 60, 3]
N_VOCAB = tiny_spec("llama").n_vocab


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The functions above and those of the example, as a library of ctypes."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    folder = tmp_path_factory.mktemp("hooks")
    source = folder / "hooks.c"
    source.write_text(SOURCE)
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", folder / "hooks.so", source, EXAMPLE]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "hooks.so"))


@pytest.fixture(scope="module")
def llm():
    with LLM(NativeBackend(tiny_file("llama"), tiny_spec("llama"), 128, 1), byte_tokenizer()) as llm:
        yield llm


def both(llm, hooks, **options):
    """The tokens of a request by both loops, which are the same."""
    options = {"max_tokens": 70, "hooks": hooks, "ignore_eos": True, **options}
    python, fused = (llm.generate(PROMPT, loop=loop, **options).tokens for loop in ("python", "fused"))
    assert python == fused
    assert len(fused) == options["max_tokens"]
    llm.cells.check()
    return fused


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 3}, {"seed": 4, "repetition_penalty": 1.3}])
def test_a_hook_that_does_nothing(llm, compiled, options):
    assert both(llm, [NativeHook(compiled.nothing)], **options) == both(llm, [], **options)


@pytest.mark.parametrize("max_tokens", [1, 2, 31, 32, 33, 65])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 3, "temperature": 1.5}])
def test_a_bias_is_numpys(llm, compiled, options, max_tokens):
    bias = np.random.default_rng(0).standard_normal(N_VOCAB).astype(np.float32)

    def add(logits, tokens):
        logits += bias

    options = {**options, "max_tokens": max_tokens}
    native = both(llm, [NativeHook(compiled.add, state=bias)], **options)
    assert native == llm.generate(PROMPT, hooks=[add], ignore_eos=True, **options).tokens
    assert max_tokens < 31 or native != both(llm, [], **options)


def test_hooks_run_in_order(llm, compiled):
    bias = np.random.default_rng(0).standard_normal(N_VOCAB).astype(np.float32)
    add, twice = NativeHook(compiled.add, bias), NativeHook(compiled.twice)
    one, other = (both(llm, hooks, temperature=0) for hooks in ([add, twice], [twice, add]))
    assert one == both(llm, [add], temperature=0)  # doubling changes no order
    assert one != other


def test_it_gets_the_whole_history(llm, compiled):
    for loop in ("python", "fused"):
        seen = np.zeros(4, np.int64)
        hook = NativeHook(compiled.record, state=seen)
        result = llm.generate(PROMPT, hooks=[hook], loop=loop, max_tokens=40, seed=1, ignore_eos=True)
        tokens = [*PROMPT, *result.tokens]
        sums = np.cumsum(np.arange(1, len(tokens) + 1) * tokens)
        assert seen.tolist() == [40, len(tokens) - 1, N_VOCAB, sums[len(PROMPT) - 1 : -1].sum()]


def test_the_example(llm, compiled):
    window = ctypes.c_int32(6)
    tokens = PROMPT + both(llm, [NativeHook(compiled.no_echo, state=window)], temperature=0)
    for i in range(len(PROMPT), len(tokens)):
        assert tokens[i] not in tokens[max(0, i - 6) : i]


def test_the_sequences_own_row_is_left_alone(llm, compiled):
    with llm.sequence(PROMPT) as sequence:
        row = sequence.logits
        before = row.copy()
        options = {"hooks": [NativeHook(compiled.twice)], "max_tokens": 4, "temperature": 0}
        llm.generate(sequence, loop="fused", ignore_eos=True, **options)
        assert np.array_equal(row, before)


def test_a_function_of_python_by_its_address(llm):
    """A callback of ctypes takes the GIL by itself."""
    calls = []

    @HOOK
    def hook(logits, n_vocab, tokens, n, state):
        calls.append((n, n_vocab, state))
        logits[7] = 100.0

    assert both(llm, [NativeHook(hook, state=12345)], temperature=0, max_tokens=40) == [7] * 40
    assert calls == 2 * [(len(PROMPT) + i, N_VOCAB, 12345) for i in range(40)]


def test_a_row_that_cannot_be_sampled(llm, compiled):
    for loop in ("python", "fused"):
        with pytest.raises(InvalidRequest, match="NaN"):
            llm.generate(PROMPT, hooks=[NativeHook(compiled.spoil)], loop=loop, max_tokens=40)
        llm.cells.check()


def test_beside_hooks_of_python(llm, compiled):
    hooks = [NativeHook(compiled.nothing), lambda logits, tokens: None]
    assert len(llm.generate(PROMPT, hooks=hooks, max_tokens=3, ignore_eos=True).tokens) == 3
    with pytest.raises(InvalidRequest, match="runs NativeHooks only; use loop='python'"):
        llm.generate(PROMPT, hooks=hooks, loop="fused")


# -- what it takes --


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_float))


@HOOK
def do_nothing(logits, n_vocab, tokens, n, state):
    """For its address."""


ADDRESS = ctypes.cast(do_nothing, ctypes.c_void_p).value


def test_addresses():
    assert NativeHook(do_nothing).addresses == (ADDRESS, 0)
    assert NativeHook(ADDRESS).addresses == (ADDRESS, 0)
    assert NativeHook(np.uint64(ADDRESS)).address == ADDRESS
    assert hex(ADDRESS) in repr(NativeHook(ADDRESS))


def test_states():
    number, pair, array = ctypes.c_int32(3), Pair(1, 2.0), np.arange(3.0)
    buffer = ctypes.create_string_buffer(b"abc")
    for state, address in (
        (None, 0),
        (77, 77),
        (array, array.ctypes.data),
        (array[1:], array.ctypes.data + 8),
        (number, ctypes.addressof(number)),
        (pair, ctypes.addressof(pair)),
        (ctypes.pointer(pair), ctypes.addressof(pair)),
        (buffer, ctypes.addressof(buffer)),
        (ctypes.c_void_p(99), 99),
        (ctypes.c_void_p(None), 0),
    ):
        assert NativeHook(ADDRESS, state).state == address


def test_function_and_state_live_as_long_as_the_hook():
    @HOOK
    def function(logits, n_vocab, tokens, n, state):
        """Goes away with the hook, not before."""

    array = np.zeros(3)
    held = weakref.ref(function), weakref.ref(array)
    hook = NativeHook(function, array)
    del function, array
    gc.collect()
    assert all(reference() is not None for reference in held)
    hook(np.zeros(4, np.float32), [1, 2])
    del hook
    gc.collect()
    assert all(reference() is None for reference in held)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "address must be a C function's"),
        ((None,), "address must be"),
        ((-1,), "address must be"),
        ((1 << 64,), "address must be"),
        ((1.5,), "address must be"),
        ((True,), "address must be"),
        (("hook",), "address must be"),
        ((print,), "address must be"),
        ((HOOK(),), "address must be"),  # a null pointer
        ((ADDRESS, "state"), "state must be None, an address, a NumPy array or an object of ctypes, not str"),
        ((ADDRESS, b"state"), "state must be"),
        ((ADDRESS, [1]), "state must be"),
        ((ADDRESS, -1), "state must be"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InvalidRequest, match=message):
        NativeHook(*arguments)


def test_native_code_checks_what_it_can():
    logits, tokens = np.zeros(4, np.float32), np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="no address"):
        _native.call_hook(0, 0, logits, tokens)
    fixed = logits.copy()
    fixed.flags.writeable = False
    for wrong in (np.zeros(4), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2], fixed):
        with pytest.raises(TypeError):
            _native.call_hook(ADDRESS, 0, wrong, tokens)
    with pytest.raises(TypeError):
        _native.call_hook(ADDRESS, 0, logits, [1, 2])
