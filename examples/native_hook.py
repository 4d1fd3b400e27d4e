"""A hook in C: compiled here, called without the GIL, and the same tokens from both loops."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import stretto

PROMPT = "Row, row, row your boat,"

with tempfile.TemporaryDirectory() as folder:
    library = Path(folder) / "native_hook.so"
    source = Path(__file__).with_name("native_hook.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    compiled = ctypes.CDLL(str(library))

window = ctypes.c_int32(8)  # what the function gets as its state; the hook keeps it alive
hook = stretto.NativeHook(compiled.no_echo, state=window)

with stretto.load("smollm2") as llm:
    options = {"max_tokens": 16, "temperature": 0}
    print("without:", repr(llm.generate(PROMPT, **options).text))
    python = llm.generate(PROMPT, hooks=[hook], loop="python", **options)
    fused = llm.generate(PROMPT, hooks=[hook], loop="fused", **options)
    print("with it:", repr(fused.text))
    print("the same in both loops:", python.tokens == fused.tokens)
