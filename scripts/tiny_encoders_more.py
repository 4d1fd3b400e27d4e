"""Tiny random encoders of InternVL, Gemma 4, LLaVA 1.6 and Llama 4, for make_tiny_vision.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    Gemma4TextConfig,
    Gemma4VisionConfig,
    InternVLConfig,
    InternVLVisionConfig,
    Llama4Config,
    Llama4TextConfig,
    Llama4VisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextModel,
)
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder, Gemma4VisionModel
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl.modeling_internvl import InternVLModel
from transformers.models.llama4 import image_processing_llama4 as canvas
from transformers.models.llama4.modeling_llama4 import Llama4MultiModalProjector, Llama4VisionModel
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from tiny_encoders import BLOCKS, FEED_FORWARD, HEADS, HIDDEN, LANGUAGE, MEAN, STD, TEXT, Arrays, Tiny


class InternVL(Tiny):
    """InternVL: tiles, a class token, scales of layers."""

    projector = "internvl"
    large = False
    names: ClassVar = {
        "vision_tower.embeddings.patch_embeddings.projection": "v.patch_embd",
        "vision_tower.embeddings.cls_token": "v.class_embd",
        "vision_tower.embeddings.position_embeddings": "v.position_embd.weight",
        "vision_tower.encoder.layer": "v.blk",
        "attention.q_proj": "attn_q",
        "attention.k_proj": "attn_k",
        "attention.v_proj": "attn_v",
        "attention.q_norm": "attn_q_norm",
        "attention.k_norm": "attn_k_norm",
        "attention.projection_layer": "attn_out",
        "layernorm_before": "ln1",
        "layernorm_after": "ln2",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "lambda_1": "ls1.weight",
        "lambda_2": "ls2.weight",
        "multi_modal_projector.layer_norm": "mm.model.mlp.0",
        "multi_modal_projector.linear_1": "mm.model.mlp.1",
        "multi_modal_projector.linear_2": "mm.model.mlp.3",
    }

    def build(self) -> torch.nn.Module:
        vision = InternVLVisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_attention_heads=HEADS,
            num_hidden_layers=BLOCKS,
            image_size=[self.image, self.image],
            patch_size=[self.patch, self.patch],
            attention_bias=not self.large,
            use_qk_norm=self.large,
            norm_type="rms_norm" if self.large else "layer_norm",
            use_mean_pooling=True,
            attn_implementation="eager",
        )
        text = LlamaConfig(**LANGUAGE)
        return InternVLModel(InternVLConfig(vision_config=vision, text_config=text, downsample_ratio=0.5))

    def keeps_epsilon(self, module: torch.nn.Module) -> bool:
        return module is self.model.multi_modal_projector.layer_norm

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        flat = array.reshape(-1) if "cls_token" in name else array[0] if "position_emb" in name else array
        return super().renamed(name, flat)

    def keys(self) -> dict[str, Any]:
        tiles = {"clip.vision.preproc_min_tiles": 1, "clip.vision.preproc_max_tiles": 4}
        return super().keys() | tiles | {"clip.use_gelu": True, "clip.vision.projector.scale_factor": 2}

    def answer(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        process = GotOcr2ImageProcessorPil(
            size={"height": self.image, "width": self.image},
            crop_to_patches=True,
            min_patches=1,
            max_patches=4,
            image_mean=list(MEAN),
            image_std=list(STD),
        )
        pixels = np.stack(process.preprocess([picture])["pixel_values"]).astype(np.float32)
        with torch.no_grad():
            result = self.model.get_image_features(
                pixel_values=torch.from_numpy(pixels),
                vision_feature_layer=-1,
                vision_feature_select_strategy="default",
            )
        return pixels, result.pooler_output.numpy()


class InternVL6(InternVL):
    """The encoder of InternVL's 6B: RMS norms, also of Q and K, no biases of Q, K and V."""

    variant = True
    large = True


class Gemma4(Tiny):
    """Gemma 4: positions in two tables, norms everywhere, clamped matrices, standardised vectors."""

    projector, image = "gemma4v", 36
    merge, tokens = 3, 70
    names: ClassVar = {
        "vision.encoder.layers": "v.blk",
        "self_attn.q_proj.linear": "attn_q",
        "self_attn.k_proj.linear": "attn_k",
        "self_attn.v_proj.linear": "attn_v",
        "self_attn.o_proj.linear": "attn_out",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "mlp.gate_proj.linear": "ffn_gate",
        "mlp.up_proj.linear": "ffn_up",
        "mlp.down_proj.linear": "ffn_down",
        "input_layernorm": "ln1",
        "post_attention_layernorm": "attn_post_norm",
        "pre_feedforward_layernorm": "ln2",
        "post_feedforward_layernorm": "ffn_post_norm",
        "vision.patch_embedder.position_embedding_table": "v.position_embd.weight",
        "vision.patch_embedder.input_proj": "v.patch_embd",
        "embedder.embedding_projection": "mm.input_projection",
    }

    def build(self) -> torch.nn.Module:
        vision = Gemma4VisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=HIDDEN // HEADS,
            num_hidden_layers=BLOCKS,
            patch_size=self.patch,
            position_embedding_size=self.tokens * self.merge,
            pooling_kernel_size=self.merge,
            use_clipped_linears=True,
            standardize=True,
            attn_implementation="eager",
        )
        model = torch.nn.Module()
        model.vision = Gemma4VisionModel(vision)
        model.embedder = Gemma4MultimodalEmbedder(vision, Gemma4TextConfig(**LANGUAGE))
        return model

    def fill(self, rng: np.random.Generator) -> None:
        super().fill(rng)
        for name, buffer in self.model.named_buffers():
            kind = name.rsplit(".", 1)[-1]
            if kind in ("input_min", "input_max", "output_min", "output_max"):
                sign = -1 if kind.endswith("min") else 1
                buffer.fill_(float(np.float16(sign * rng.uniform(1.0, 1.75))))
            elif kind in ("std_bias", "std_scale"):
                values = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
                buffer.copy_(torch.from_numpy(values))

    def tensors(self) -> Arrays:
        found = super().tensors()
        for name, buffer in self.model.named_buffers():
            kind = name.rsplit(".", 1)[-1]
            if kind in ("input_min", "input_max", "output_min", "output_max"):
                target, _ = self.renamed(name.replace(f".{kind}", ".linear.weight"), np.zeros(1))[0]
                found[target.replace(".weight", f".{kind}")] = buffer.numpy().reshape(1)
            elif kind in ("std_bias", "std_scale"):
                found[f"v.{kind}"] = buffer.numpy()
        return found

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if name.endswith("input_proj.weight"):  # pixel by pixel there, channel by channel in the file
            array = array.reshape(HIDDEN, self.patch, self.patch, 3).transpose(0, 3, 1, 2)
        return super().renamed(name, array)

    def keys(self) -> dict[str, Any]:
        keys = super().keys()
        del keys["clip.projector_type"]
        return keys | {
            "clip.vision.projector_type": self.projector,
            "clip.use_gelu": True,
            "clip.vision.projector.scale_factor": self.merge,
            "clip.vision.image_max_pixels": self.tokens * (self.merge * self.patch) ** 2,
            "clip.vision.image_mean": np.zeros(3, np.float32),
            "clip.vision.image_std": np.ones(3, np.float32),
        }

    def answer(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        process = Gemma4ImageProcessorPil(
            patch_size=self.patch, max_soft_tokens=self.tokens, pooling_kernel_size=self.merge
        )
        done = process.preprocess([picture], return_tensors="np")
        patches, places = done["pixel_values"], np.asarray(done["image_position_ids"])
        with torch.no_grad():
            seen = self.model.vision(
                torch.from_numpy(np.asarray(patches, np.float32)), torch.from_numpy(places)
            )
            vectors = self.model.embedder(seen.last_hidden_state).numpy()
        columns, rows = places[0].max(axis=0) + 1
        size = self.patch
        parts = patches[0, : rows * columns].reshape(rows, columns, size, size, 3)
        pixels = parts.transpose(4, 0, 2, 1, 3).reshape(1, 3, rows * size, columns * size)
        return 2 * pixels.astype(np.float32) - 1, vectors[None]


class LlavaNext(Tiny):
    """LLaVA 1.6: tiles of several resolutions, and a vector that ends rows of patches."""

    projector, patch = "mlp", 6
    resolutions: ClassVar = [[24, 48], [48, 24], [48, 48], [24, 72]]  # heights and widths
    names: ClassVar = {
        "vision_tower.": "",
        "vision_model.": "",
        "embeddings.class_embedding": "v.class_embd",
        "embeddings.patch_embedding": "v.patch_embd",
        "embeddings.position_embedding": "v.position_embd",
        "pre_layrnorm": "v.pre_ln",
        "encoder.layers": "v.blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_out",
        "layer_norm1": "ln1",
        "layer_norm2": "ln2",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
        "multi_modal_projector.linear_1": "mm.0",
        "multi_modal_projector.linear_2": "mm.2",
        "image_newline": "v.image_newline",
    }

    def build(self) -> torch.nn.Module:
        vision = CLIPVisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_attention_heads=HEADS,
            num_hidden_layers=BLOCKS + 1,  # the last one is not run
            image_size=self.image,
            patch_size=self.patch,
            attn_implementation="eager",
        )
        return LlavaNextModel(
            LlavaNextConfig(
                vision_config=vision,
                text_config=LlamaConfig(**LANGUAGE),
                image_grid_pinpoints=self.resolutions,
                image_token_index=63,
            )
        )

    def renamed(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        if "post_layernorm" in name or f"layers.{BLOCKS}." in name:
            return []
        return super().renamed(name, array)

    def keys(self) -> dict[str, Any]:
        pairs = [n for height, width in self.resolutions for n in (width, height)]
        return super().keys() | {
            "clip.vision.image_grid_pinpoints": np.array(pairs, np.int32),
            "clip.vision.mm_patch_merge_type": "spatial_unpad",
        }

    def processed(self, picture: Image.Image) -> tuple[torch.Tensor, torch.Tensor]:
        """Tiles, and the size of the picture."""
        process = LlavaNextImageProcessorPil(
            size={"shortest_edge": self.image},
            crop_size={"height": self.image, "width": self.image},
            image_grid_pinpoints=self.resolutions,
            image_mean=list(MEAN),
            image_std=list(STD),
        )
        done = process.preprocess([picture], return_tensors="np")
        pixels = np.asarray(done["pixel_values"], np.float32)
        return torch.from_numpy(pixels), torch.from_numpy(np.asarray(done["image_sizes"]))

    def answer(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        pixels, _ = self.processed(picture)
        with torch.no_grad():
            hidden = self.model.vision_tower(pixels[0], output_hidden_states=True).hidden_states[-2]
            vectors = self.model.multi_modal_projector(hidden[:, 1:])
            end = self.model.image_newline.expand(len(vectors), 1, TEXT)
        return pixels[0].numpy(), torch.cat((vectors, end), dim=1).detach().numpy()

    def packed(self, picture: Image.Image) -> np.ndarray:
        """The vectors as they stand in a prompt."""
        pixels, sizes = self.processed(picture)
        with torch.no_grad():
            result = self.model.get_image_features(pixel_values=pixels, image_sizes=sizes)
        return result.pooler_output[0].numpy()


class Llama4(Tiny):
    """Llama 4: a class token behind the patches, rotated patches, tiles of a canvas."""

    projector, tiles = "llama4", 4
    names: ClassVar = {
        "vision.patch_embedding.linear": "v.patch_embd",
        "vision.class_embedding": "v.class_embd",
        "vision.positional_embedding_vlm": "v.position_embd.weight",
        "vision.layernorm_pre": "v.pre_ln",
        "vision.layernorm_post": "v.post_ln",
        "vision.model.layers": "v.blk",
        "vision.vision_adapter.mlp.fc": "mm.model.mlp.",
        "projector.linear_1": "mm.model.fc",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_out",
        "input_layernorm": "ln1",
        "post_attention_layernorm": "ln2",
        "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down",
    }

    def build(self) -> torch.nn.Module:
        vision = Llama4VisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=4 * HIDDEN,  # as many numbers as a square has
            num_attention_heads=HEADS,
            num_hidden_layers=BLOCKS,
            image_size=self.image,
            patch_size=self.patch,
            pixel_shuffle_ratio=0.5,
            projector_input_dim=40,
            projector_output_dim=40,
            vision_output_dim=40,
            attn_implementation="eager",
        )
        text = Llama4TextConfig(hidden_size=TEXT)
        model = torch.nn.Module()
        model.vision = Llama4VisionModel(vision)
        model.projector = Llama4MultiModalProjector(Llama4Config(vision_config=vision, text_config=text))
        return model

    def fill(self, rng: np.random.Generator) -> None:
        super().fill(rng)
        for matrix in (self.model.vision.vision_adapter.mlp.fc1, self.model.vision.vision_adapter.mlp.fc2):
            matrix.weight.data *= 2  # what a GELU takes away

    def keys(self) -> dict[str, Any]:
        return super().keys() | {
            "clip.use_gelu": True,
            "clip.vision.projector.scale_factor": 2,
            "clip.vision.preproc_max_tiles": self.tiles,
            "clip.vision.feed_forward_length": 4 * HIDDEN,
        }

    def answer(self, picture: Image.Image) -> tuple[np.ndarray, np.ndarray]:
        pixels, _ = llama4_tiles(picture, self.image, self.tiles, MEAN, STD)
        with torch.no_grad():
            hidden = self.model.vision(torch.from_numpy(pixels)).last_hidden_state
            vectors = self.model.projector(hidden)
        return pixels, vectors.numpy()


def llama4_tiles(
    picture: Image.Image, edge: int, most: int, mean: Sequence[float], std: Sequence[float]
) -> tuple[np.ndarray, tuple[int, int]]:
    """Tiles and their grid as Llama4ImageProcessor has them, but resized by Pillow, and in float32."""
    size = picture.height, picture.width
    square = canvas.SizeDict(height=edge, width=edge)
    target = canvas.get_best_fit(size, torch.tensor(canvas.find_supported_resolutions(most, square))).tolist()
    limits = tuple(min(max(side, edge), whole) for side, whole in zip(size, target, strict=True))
    height, width = canvas.get_max_res_without_distortion(size, limits)
    ground = np.zeros((*target, 3), np.uint8)
    ground[:height, :width] = picture.resize((width, height), Image.Resampling.BILINEAR)
    rows, columns = (side // edge for side in target)
    tiles = canvas.split_to_tiles(torch.from_numpy(ground).permute(2, 0, 1)[None], rows, columns)[0].numpy()
    if len(tiles) > 1:
        small = np.asarray(picture.resize((edge, edge), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        tiles = np.concatenate((tiles, small[None]))
    middle, spread = (np.array(one, np.float32).reshape(3, 1, 1) for one in (mean, std))
    return ((tiles.astype(np.float32) / 255 - middle) / spread).astype(np.float32), (rows, columns)
