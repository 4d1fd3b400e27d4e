"""Experts that no token chose are not read from disk, where weights are not packed."""

import ctypes
import mmap
import os
import sys

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.backends.native import NativeBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor
from stretto.weights.writer import write_gguf

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are asked for as Linux does it")

N_EXPERT, N_USED, WIDTH, INNER = 16, 2, 512, 512
KEYS = {
    "context_length": 64,
    "embedding_length": WIDTH,
    "block_count": 1,
    "feed_forward_length": INNER,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e4,
    "expert_count": N_EXPERT,
    "expert_used_count": N_USED,
    "expert_feed_forward_length": INNER,
}
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


@pytest.fixture
def path(tmp_path):
    """A file with one layer of experts, of which nothing is in memory."""
    rng = np.random.default_rng(0)
    tensors = {
        "token_embd.weight": rng.normal(0, 1, (32, WIDTH)).astype(np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.attn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.ffn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.attn_q_norm.weight": np.ones(32, np.float32),
        "blk.0.attn_k_norm.weight": np.ones(32, np.float32),
        "blk.0.attn_q.weight": rng.normal(0, 0.1, (64, WIDTH)).astype(np.float32),
        "blk.0.attn_k.weight": rng.normal(0, 0.1, (32, WIDTH)).astype(np.float32),
        "blk.0.attn_v.weight": rng.normal(0, 0.1, (32, WIDTH)).astype(np.float32),
        "blk.0.attn_output.weight": rng.normal(0, 0.1, (WIDTH, 64)).astype(np.float32),
        "blk.0.ffn_gate_inp.weight": rng.normal(0, 0.1, (N_EXPERT, WIDTH)).astype(np.float32),
    }
    for name in EXPERTS:
        shape, fmt = (N_EXPERT, INNER, WIDTH), Format.Q8_0
        blocks = rng.integers(0, 256, (N_EXPERT * INNER * WIDTH // fmt.block, fmt.size), dtype=np.uint8)
        blocks[:, :2] = np.array([1e-3], np.float16).view(np.uint8)
        full = f"blk.0.{name}.weight"
        tensors[full] = Tensor(full, shape, fmt, 0, blocks.reshape(N_EXPERT, INNER, -1))
    metadata = {"general.architecture": "qwen3moe"} | {
        f"qwen3moe.{key}": value for key, value in KEYS.items()
    }
    path = tmp_path / "experts.gguf"
    write_gguf(path, metadata, tensors)
    evict(path)
    if resident(path).mean() > 0.1:
        pytest.skip("this file system keeps files in memory")
    return path


def evict(path):
    """Let the system forget the pages of a file that no process has read."""
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(path):
    """Which pages of a file are in memory."""
    library = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert library.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages) == 0, ctypes.get_errno()
    return np.frombuffer(pages, np.uint8) & 1


def shares(path, file):
    """Of each tensor of experts and each of them, the share that is in memory: float[3, N_EXPERT]."""
    pages, found = resident(path), []
    for name in EXPERTS:
        tensor = file.tensors[f"blk.0.{name}.weight"]
        bounds = tensor.offset + tensor.nbytes // N_EXPERT * np.arange(N_EXPERT + 1)
        first, last = -(-bounds[:-1] // mmap.PAGESIZE), bounds[1:] // mmap.PAGESIZE
        found.append([pages[a:b].mean() for a, b in zip(first, last, strict=True)])
    return np.array(found)


def test_experts_that_no_token_chose_are_not_read(path):
    """A layer's chosen experts are read as a whole; of the others, what shares their first and last pages."""
    with GGUF(path) as file:
        backend = NativeBackend(file, read_spec(file), 16, 2, repack=False)
        evict(path)  # what the system read ahead of the head of the file
        assert shares(path, file).max() < 0.1
        batch = Batch()
        batch.add(3, 0, [0], logits=True)
        batch.place(Cells(16))
        assert np.isfinite(backend.forward(batch)).all()
        found = shares(path, file)
        backend.close()
    is_read = found == 1
    assert (is_read == is_read[0]).all()  # gate, up and down of the same experts
    assert is_read[0].sum() == N_USED
    assert found[~is_read].max() < 0.1
