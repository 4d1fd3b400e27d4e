"""Makes the tiny random image encoder of MiniCPM-V for the tests: tests/data/vision/minicpmv.gguf and .npz.

    python scripts/make_tiny_minicpmv.py

The encoder is transformers' Idefics2VisionTransformer, which has the same positions; slices are those of its
image processor of MiniCPM-V 4.6, for squares of one patch. It has no class of the resampler: that is the
authors' (OpenBMB, modeling of MiniCPM-V 2.6 to 4.5), around PyTorch's own attention.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer
from transformers.models.minicpmv4_6 import image_processing_pil_minicpmv4_6 as slicing

from make_tiny_vision import FOLDER, shown_picture
from stretto.weights.writer import write_gguf
from tiny_encoders import BLOCKS, FEED_FORWARD, HEADS, HIDDEN, MEAN, STD, Arrays, Tiny

PATCH, SLICE, SIDE = 4, 24, 7  # pixels, pixels, places along each side of the table of positions
WIDE, QUERIES = 128, 5


class Resampler(torch.nn.Module):
    """Queries that attend to patches, whose keys have sines and cosines of their columns and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Parameter(torch.zeros(QUERIES, WIDE))
        self.kv = torch.nn.Linear(HIDDEN, WIDE, bias=False)
        self.attn = torch.nn.MultiheadAttention(WIDE, 1, batch_first=True)
        self.ln_q, self.ln_kv, self.ln_post = (torch.nn.LayerNorm(WIDE, eps=1e-6) for _ in range(3))
        self.proj = torch.nn.Parameter(torch.zeros(WIDE, WIDE))

    def forward(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """[n, patches, HIDDEN] → [n, QUERIES, WIDE]."""
        omega = 1 / 10_000 ** (np.arange(WIDE // 4) / (WIDE / 4))
        row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        halves = [np.outer(part.reshape(-1), omega) for part in (column, row)]
        table = np.concatenate([f(part) for part in halves for f in (np.sin, np.cos)], axis=1)
        values = self.ln_kv(self.kv(x))
        keys = values + torch.from_numpy(table.astype(np.float32))
        query = self.ln_q(self.query).expand(len(x), -1, -1)
        return self.ln_post(self.attn(query, keys, values)[0]) @ self.proj


class Slices(slicing.MiniCPMV4_6ImageProcessorPil):  # type: ignore[misc]
    """Sizes are whole patches, where version 4.6 has squares of four."""

    def find_best_resize(self, *given: Any, **options: Any) -> tuple[int, int]:
        exact = slicing.ensure_divide
        slicing.ensure_divide = lambda length, divisor: exact(length, divisor // 2)
        try:
            return super().find_best_resize(*given, **options)
        finally:
            slicing.ensure_divide = exact


class MiniCPMV(Tiny):
    """The whole of an image, and slices of another size."""

    projector, image, patch = "resampler", SLICE, PATCH
    names: ClassVar = {
        "vision.embeddings.patch_embedding": "v.patch_embd",
        "vision.embeddings.position_embedding": "v.position_embd",
        "vision.encoder.layers": "v.blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_out",
        "layer_norm1": "ln1",
        "layer_norm2": "ln2",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "vision.post_layernorm": "v.post_ln",
        "attn.out_proj": "attn.out",
    }

    def build(self) -> torch.nn.Module:
        config = Idefics2VisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_attention_heads=HEADS,
            num_hidden_layers=BLOCKS,
            image_size=SIDE * PATCH,
            patch_size=PATCH,
            attn_implementation="eager",
        )
        return torch.nn.ModuleDict(
            {"vision": Idefics2VisionTransformer._from_config(config), "resampler": Resampler()}
        )

    def keeps_epsilon(self, module: torch.nn.Module) -> bool:
        return module in list(self.model["resampler"].modules())

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if "in_proj" in name:
            kind = name.rpartition("_")[2]
            parts = zip("qkv", np.split(array, 3), strict=True)
            return [(f"resampler.attn.{part}.{kind}", rows) for part, rows in parts]
        if name == "resampler.proj":
            return [("resampler.proj.weight", array.T)]
        for part, other in self.names.items():
            name = name.replace(part, other)
        return [(name, array)]

    def tensors(self) -> Arrays:
        found = super().tensors()
        return found | {"resampler.query": found["resampler.query"].astype(np.float32)}

    def keys(self) -> dict[str, Any]:
        further = {"clip.minicpmv_version": 5, "clip.minicpmv_query_num": QUERIES, "clip.use_gelu": True}
        return super().keys() | further

    def vectors(self, pixels: np.ndarray) -> np.ndarray:
        """[n, 3, height, width] → [n, QUERIES, WIDE]."""
        rows, columns = (side // PATCH for side in pixels.shape[2:])
        with torch.no_grad():
            mask = torch.ones(len(pixels), rows, columns, dtype=torch.bool)
            x = self.model["vision"](torch.from_numpy(pixels), patch_attention_mask=mask).last_hidden_state
            return self.model["resampler"](x, rows, columns).numpy()


def pixels_of(i: int) -> list[np.ndarray]:
    """All of picture i, and its slices: float32[n, 3, height, width] each."""
    process = Slices(
        scale_resolution=SLICE, patch_size=PATCH, downsample_mode="4x", image_mean=MEAN, image_std=STD
    )
    done = process.preprocess([shown_picture(i)])
    flat, sizes, at, found = done["pixel_values"][0], done["target_sizes"], 0, []
    for rows, columns in sizes:
        part = flat[:, :, at : at + rows * columns * PATCH].reshape(3, PATCH, rows, columns, PATCH)
        found.append(part.transpose(0, 2, 1, 3, 4).reshape(3, rows * PATCH, columns * PATCH))
        at += rows * columns * PATCH
    return [np.stack(found[:1]).astype(np.float32), np.stack(found[1:]).astype(np.float32)]


def main() -> None:
    """Write the file and its answers."""
    model, answers = MiniCPMV(), {}
    model.fill(np.random.default_rng(5))
    write_gguf(FOLDER / "minicpmv.gguf", model.keys(), model.tensors())
    for i in range(2):
        for name, pixels in zip(("whole", "slices"), pixels_of(i), strict=True):
            vectors = model.vectors(pixels)
            answers |= {f"pixels.{name}.{i}": pixels, f"vectors.{name}.{i}": vectors}
            print(name, i, pixels.shape, vectors.shape, vectors.std())
    np.savez_compressed(FOLDER / "minicpmv.npz", **answers)


if __name__ == "__main__":
    main()
