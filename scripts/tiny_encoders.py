"""Tiny random encoders of families whose images keep their shape, or have tiles, for make_tiny_vision.py.

Each has the structure of its family, with all that is special about it: merged patches, two frames,
deepstack, clamped matrices, norms of Q and K, scales of layers.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from transformers import (
    LlamaConfig,
    LlavaConfig,
    LlavaModel,
    Mistral3Config,
    Mistral3Model,
    MistralConfig,
    PixtralVisionConfig,
)
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

HIDDEN, FEED_FORWARD, HEADS, TEXT, BLOCKS = 32, 64, 4, 32, 2
EPS = 2.0**-9
MEAN, STD = (0.5, 0.375, 0.4375), (0.25, 0.3125, 0.28125)
LANGUAGE = {
    "vocab_size": 64,
    "hidden_size": TEXT,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
Arrays = dict[str, np.ndarray]


class Tiny:
    """A model, its file's names and keys, and what it makes of a picture."""

    projector: str
    variant = False  # of another case, which shows the same pixels
    patch = 4
    image = 24
    names: ClassVar[dict[str, str]] = {}  # parts of transformers' names → those of the file

    def __init__(self) -> None:
        self.model = self.build().eval().float()
        for module in self.model.modules():
            for name in ("eps", "variance_epsilon"):
                if hasattr(module, name) and not self.keeps_epsilon(module):
                    setattr(module, name, EPS)

    def build(self) -> torch.nn.Module:
        raise NotImplementedError

    def keeps_epsilon(self, module: torch.nn.Module) -> bool:
        return False

    def fill(self, rng: np.random.Generator) -> None:
        for name, parameter in self.model.named_parameters():
            shape = tuple(parameter.shape)
            if parameter.ndim == 1 and not name.endswith("bias"):
                values = np.round(rng.uniform(-0.5, 0.5, shape) * 512) / 512 + 1
            elif parameter.ndim == 1 or any(part in name for part in ("cls_token", "position", "pos_embed")):
                values = rng.normal(0, 0.5, shape)
            else:
                gain = 1.4 if any(part in name for part in ("q_proj", "k_proj", "qkv")) else 1.0
                values = rng.normal(0, gain * math.prod(shape[1:]) ** -0.5, shape)
            parameter.data = torch.from_numpy(values.astype(np.float16).astype(np.float32))

    def tensors(self) -> Arrays:
        """As an mmproj file has them: matrices in float16, the rest in float32."""
        found: Arrays = {}
        for name, parameter in self.model.named_parameters():
            if name.startswith(("language_model.", "text.")):
                continue
            for target, array in self.renamed(name, parameter.detach().numpy()):
                small = array.ndim == 2 and "position" not in target
                found[target] = np.ascontiguousarray(array.astype(np.float16) if small else array)
        return found

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        target = name
        for part, other in self.names.items():
            target = target.replace(part, other)
        if not target.startswith(("v.", "mm.")):
            raise KeyError(name)
        return [(target, array)]

    def keys(self) -> dict[str, Any]:
        return {
            "general.architecture": "clip",
            "clip.has_vision_encoder": True,
            "clip.projector_type": self.projector,
            "clip.vision.image_size": self.image,
            "clip.vision.patch_size": self.patch,
            "clip.vision.embedding_length": HIDDEN,
            "clip.vision.feed_forward_length": FEED_FORWARD,
            "clip.vision.projection_dim": TEXT,
            "clip.vision.block_count": BLOCKS,
            "clip.vision.attention.head_count": HEADS,
            "clip.vision.attention.layer_norm_epsilon": EPS,
            "clip.vision.image_mean": np.array(MEAN, np.float32),
            "clip.vision.image_std": np.array(STD, np.float32),
        }

    def answer(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        """Pixels that go in, [n, 3, height, width], and vectors that come out, [n, tokens, numbers]."""
        raise NotImplementedError


class Pixtral(Tiny):
    """Mistral 3: Pixtral's encoder and a matrix that merges patches."""

    projector, image, merge = "pixtral", 64, 2
    names: ClassVar = {
        "vision_tower.patch_conv": "v.patch_embd",
        "vision_tower.ln_pre": "v.pre_ln",
        "vision_tower.transformer.layers": "v.blk",
        "attention.q_proj": "attn_q",
        "attention.k_proj": "attn_k",
        "attention.v_proj": "attn_v",
        "attention.o_proj": "attn_out",
        "attention_norm": "ln1",
        "ffn_norm": "ln2",
        "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up",
        "feed_forward.down_proj": "ffn_down",
        "multi_modal_projector.norm": "mm.input_norm",
        "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
        "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
    }

    def vision(self) -> PixtralVisionConfig:
        return PixtralVisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_attention_heads=HEADS,
            num_hidden_layers=BLOCKS,
            image_size=self.image,
            patch_size=self.patch,
            hidden_act="silu",
            attn_implementation="eager",
        )

    def build(self) -> torch.nn.Module:
        return Mistral3Model(
            Mistral3Config(
                vision_config=self.vision(),
                text_config=MistralConfig(**LANGUAGE),
                spatial_merge_size=self.merge,
                vision_feature_layer=-1,
                multimodal_projector_bias=False,
                image_token_index=63,
            )
        )

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # pairs side by side, as the file has them
            array = array.reshape(HEADS, 2, -1, HIDDEN).swapaxes(1, 2).reshape(array.shape)
        return super().renamed(name, array)

    def tensors(self) -> Arrays:
        row = np.random.default_rng(5).normal(0, 1, TEXT).astype(np.float32)
        return super().tensors() | {"v.token_embd.img_break": row}

    def keys(self) -> dict[str, Any]:
        merge = {"clip.vision.spatial_merge_size": self.merge} if self.merge > 1 else {}
        return super().keys() | merge | {"clip.use_silu": True}

    def answer(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        process = PixtralImageProcessorPil(
            size={"longest_edge": self.image},
            patch_size=self.patch * self.merge,
            image_mean=list(MEAN),
            image_std=list(STD),
        )
        done = process.preprocess([picture], return_tensors="np")
        pixels = torch.from_numpy(np.asarray(done["pixel_values"], np.float32))
        with torch.no_grad():
            sizes = torch.tensor([pixels.shape[-2:]])
            options = {} if self.merge > 1 else {"vision_feature_layer": -1}
            features = self.model.get_image_features(pixel_values=pixels, image_sizes=sizes, **options)
        return pixels.numpy(), features.pooler_output[0].numpy().reshape(1, -1, TEXT)


class Pixtral12(Pixtral):
    """Pixtral 12B: LLaVA's two matrices behind every patch."""

    variant = True
    image, merge = 32, 1

    def build(self) -> torch.nn.Module:
        config = LlavaConfig(
            vision_config=self.vision(),
            text_config=LlamaConfig(**LANGUAGE),
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            image_token_index=63,
        )
        return LlavaModel(config)


class Qwen3VL(Tiny):
    """Qwen3-VL: results of two early blocks, positions of another grid."""

    projector = "qwen3vl_merger"
    merge, taps = 2, (0, 1)
    limits = 1024, 4096  # pixels
    names: ClassVar = {
        "patch_embed.proj": "v.patch_embd",
        "pos_embed": "v.position_embd",
        "blocks.": "v.blk.",
        "attn.qkv": "attn_qkv",
        "attn.proj": "attn_out",
        "norm1": "ln1",
        "norm2": "ln2",
        "mlp.linear_fc1": "ffn_up",
        "mlp.linear_fc2": "ffn_down",
    }
    merger: ClassVar = {"merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2"}

    def build(self) -> torch.nn.Module:
        config = Qwen3VLVisionConfig(
            depth=BLOCKS,
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_heads=HEADS,
            out_hidden_size=TEXT,
            patch_size=self.patch,
            spatial_merge_size=self.merge,
            temporal_patch_size=2,
            num_position_embeddings=(self.image // self.patch) ** 2,
            deepstack_visual_indexes=list(self.taps),
        )
        config._attn_implementation = "eager"
        return Qwen3VLVisionModel(config)

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if name == "patch_embed.proj.weight":
            first, second = array[:, :, 0], array[:, :, 1]
            return [("v.patch_embd.weight", first), ("v.patch_embd.weight.1", second)]
        if name.startswith("deepstack_merger_list."):
            _, number, rest = name.split(".", 2)
            return [(f"v.deepstack.{self.taps[int(number)]}.{rest.replace('linear_', '')}", array)]
        for part, other in self.merger.items():
            if name.startswith(part):
                return [(name.replace(part, other), array)]
        return super().renamed(name, array)

    def keys(self) -> dict[str, Any]:
        return super().keys() | {
            "clip.use_gelu": True,
            "clip.vision.spatial_merge_size": self.merge,
            "clip.vision.is_deepstack_layers": np.array([i in self.taps for i in range(BLOCKS)]),
            "clip.vision.image_min_pixels": self.limits[0],
            "clip.vision.image_max_pixels": self.limits[1],
        }

    def processed(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        """Patches as the model takes them, and their grid."""
        process = Qwen2VLImageProcessorPil(
            patch_size=self.patch,
            merge_size=self.merge,
            image_mean=list(MEAN),
            image_std=list(STD),
            size={"shortest_edge": self.limits[0], "longest_edge": self.limits[1]},
        )
        done = process.preprocess([picture], return_tensors="np")
        return np.asarray(done["pixel_values"], np.float32), np.asarray(done["image_grid_thw"])

    def answer(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        patches, grid = self.processed(picture)
        with torch.no_grad():
            vectors = self.results(patches, grid).numpy()
        _, rows, columns = (int(n) for n in grid[0])
        merge, size = self.merge, self.patch
        parts = patches.reshape(rows // merge, columns // merge, merge, merge, 3, 2, size, size)[..., 0, :, :]
        pixels = parts.transpose(4, 0, 2, 5, 1, 3, 6).reshape(1, 3, rows * size, columns * size)
        return pixels, vectors[None]

    def results(self, patches: np.ndarray, grid: np.ndarray) -> torch.Tensor:
        """The vectors of an image, with what goes to early layers."""
        result = self.model(torch.from_numpy(patches), grid_thw=torch.from_numpy(grid))
        return torch.cat((result.pooler_output, *result.deepstack_features), dim=-1)


class Qwen35(Qwen3VL):
    """Qwen3.5: no results of early blocks."""

    variant = True
    taps = ()


class Qwen2VL(Qwen3VL):
    """Qwen2-VL: no learned positions."""

    projector, variant = "qwen2vl_merger", True
    sizes: ClassVar[dict[str, Any]] = {
        "depth": BLOCKS,
        "num_heads": HEADS,
        "patch_size": Qwen3VL.patch,
        "spatial_merge_size": Qwen3VL.merge,
        "temporal_patch_size": 2,
    }
    names: ClassVar = Qwen3VL.names | {
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    merger: ClassVar = {"merger.ln_q": "v.post_ln", "merger.mlp": "mm"}

    def build(self) -> torch.nn.Module:
        config = Qwen2VLVisionConfig(
            embed_dim=HIDDEN, hidden_size=TEXT, mlp_ratio=FEED_FORWARD // HIDDEN, **self.sizes
        )
        config._attn_implementation = "eager"
        return Qwen2VisionTransformerPretrainedModel(config)

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        found = super().renamed(name, array)
        if ".qkv." not in name:
            return found
        parts = zip("qkv", np.split(found[0][1], 3), strict=True)
        return [(found[0][0].replace("attn_qkv", f"attn_{part}"), one) for part, one in parts]

    def keys(self) -> dict[str, Any]:
        keys = super().keys()
        del keys["clip.use_gelu"], keys["clip.vision.is_deepstack_layers"]
        return keys

    def results(self, patches: np.ndarray, grid: np.ndarray) -> torch.Tensor:
        return self.model(torch.from_numpy(patches), grid_thw=torch.from_numpy(grid)).pooler_output


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: windows in the first block, RMS norms, a gate."""

    projector = "qwen2.5vl_merger"
    window = 24  # pixels

    def build(self) -> torch.nn.Module:
        config = Qwen2_5_VLVisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            out_hidden_size=TEXT,
            window_size=self.window,
            fullatt_block_indexes=[1],
            **self.sizes,
        )
        config._attn_implementation = "eager"
        return Qwen2_5_VisionTransformerPretrainedModel(config)

    def keys(self) -> dict[str, Any]:
        windows = {"clip.vision.n_wa_pattern": 2, "clip.vision.window_size": self.window}
        return super().keys() | windows | {"clip.use_silu": True}
