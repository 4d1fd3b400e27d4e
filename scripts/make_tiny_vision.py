"""Makes the tiny random image encoders of the tests, and what `transformers` computes with them.

    python scripts/make_tiny_vision.py [CASE …]

writes tests/data/vision/CASE.gguf, golden.npz and shapes.npz (for the cases of tiny_encoders.py), always the
same. It needs torch, transformers and Pillow; the tests, which read the files, do not need the first two.

No constant has its usual value, and weights are drawn so that activations and vectors have about unit
variance: no piece can be wrong unnoticed. All weights are exact in float16. The pictures go through the
models' own processors, so that golden pixels are theirs too.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Idefics3Config,
    Idefics3Model,
    LlamaConfig,
    LlavaConfig,
    LlavaModel,
    SiglipVisionConfig,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from stretto.weights.writer import write_gguf
from tiny_encoders import Pixtral, Pixtral12, Qwen2VL, Qwen3VL, Qwen25VL, Qwen35, Tiny
from tiny_encoders_more import Gemma4, InternVL, InternVL6, Llama4, LlavaNext
from tiny_sighted import SightedQwen, SightedQwen25, answer_of_gemma4, answer_of_qwen35

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "vision"
PICTURES = ((40, 40), (96, 54), (37, 83))  # width, height: a square, wide, tall
HIDDEN, FEED_FORWARD, HEADS, TEXT = 32, 64, 4, 32
EPS = 2.0**-9
MEAN, STD = (0.5, 0.375, 0.4375), (0.25, 0.3125, 0.28125)

SIZES = {"mlp": (24, 6, 3), "idefics3": (32, 8, 2), "gemma3": (32, 4, 2)}  # image, patch, blocks
MERGE = {"idefics3": 2, "gemma3": 4}
BEFORE, BETWEEN, AFTER = [5, 17, 33], [3, 11], [8, 2, 60, 41, 7]  # tokens of texts around pictures
LONGEST = 96  # idefics3: three tiles along the longest edge

TINY: dict[str, type[Tiny]] = {
    "pixtral": Pixtral,
    "pixtral-12b": Pixtral12,
    "qwen3vl": Qwen3VL,
    "qwen35": Qwen35,
    "qwen2vl": Qwen2VL,
    "qwen25vl": Qwen25VL,
    "internvl": InternVL,
    "internvl-6b": InternVL6,
    "gemma4v": Gemma4,
    "llava-next": LlavaNext,
    "llama4": Llama4,
}
SIGHTED = {"qwen3vl": SightedQwen, "qwen25vl": SightedQwen25}

BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
WHOLE = {
    "embeddings.patch_embedding.weight": "v.patch_embd.weight",
    "embeddings.patch_embedding.bias": "v.patch_embd.bias",
    "embeddings.position_embedding.weight": "v.position_embd.weight",
    "embeddings.class_embedding": "v.class_embd",
    "pre_layrnorm.weight": "v.pre_ln.weight",
    "pre_layrnorm.bias": "v.pre_ln.bias",
    "post_layernorm.weight": "v.post_ln.weight",
    "post_layernorm.bias": "v.post_ln.bias",
}
PROJECTORS = {
    "mlp": {
        "linear_1.weight": "mm.0.weight",
        "linear_1.bias": "mm.0.bias",
        "linear_2.weight": "mm.2.weight",
        "linear_2.bias": "mm.2.bias",
    },
    "idefics3": {"modality_projection.proj.weight": "mm.model.fc.weight"},
    "gemma3": {
        "mm_input_projection_weight": "mm.input_projection.weight",
        "mm_soft_emb_norm.weight": "mm.soft_emb_norm.weight",
    },
}


def picture(width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """uint8[height, width, 3]: smooth shapes with sharp edges and some noise, no two channels alike."""
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [np.sin(7 * (i + 1) * x + 5 * (3 - i) * y + i) for i in range(3)]
    image = np.stack(waves, axis=2) * 90 + 128
    image[height // 4 : height // 2, width // 3 : width // 2] = (250, 30, 5)
    return np.clip(image + rng.normal(0, 12, image.shape), 0, 255).astype(np.uint8)


def shown_picture(i: int) -> Image.Image:
    """Picture i of all cases."""
    return Image.fromarray(picture(*PICTURES[i], np.random.default_rng(i)))


def settings(case: str) -> dict[str, Any]:
    image, patch, blocks = SIZES[case]
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_attention_heads": HEADS,
        "num_hidden_layers": blocks,
        "image_size": image,
        "patch_size": patch,
        "layer_norm_eps": EPS,
        "attn_implementation": "eager",
    }


def build(case: str) -> tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module]:
    """The whole model, its encoder and its projector."""
    text = {
        "vocab_size": 64,
        "hidden_size": TEXT,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
    }
    if case == "mlp":
        vision = CLIPVisionConfig(**settings(case), hidden_act="quick_gelu")
        config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**text), image_token_index=63)
        model = LlavaModel(config)
        return model, model.vision_tower, model.multi_modal_projector
    if case == "idefics3":
        vision = settings(case) | {"model_type": "idefics3_vision"}
        config = Idefics3Config(
            vision_config=vision, text_config=LlamaConfig(**text), scale_factor=MERGE[case], image_token_id=63
        )
        model = Idefics3Model(config)
        return model, model.vision_model, model.connector
    vision = SiglipVisionConfig(**settings(case), vision_use_head=False)
    side = SIZES[case][0] // SIZES[case][1] // MERGE[case]
    config = Gemma3Config(
        vision_config=vision, text_config=Gemma3TextConfig(**text), mm_tokens_per_image=side**2
    )
    model = Gemma3ForConditionalGeneration(config).model
    return model, model.vision_tower, model.multi_modal_projector


def fill(module: torch.nn.Module, rng: np.random.Generator) -> None:
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        if "norm" in name.lower() and name.endswith("weight"):
            base = 0.0 if "soft_emb" in name else 1.0  # Gemma's norm adds one by itself
            values = np.round(rng.uniform(-0.5, 0.5, shape) * 512) / 512 + base
        elif name.endswith("bias") or "class_embedding" in name or "position_embedding" in name:
            values = rng.normal(0, 0.5, shape)
        else:
            fan_in = shape[0] if "input_projection" in name else int(np.prod(shape[1:]))
            gain = 1.4 if "q_proj" in name or "k_proj" in name else 1.0
            values = rng.normal(0, gain * fan_in**-0.5, shape)
        parameter.data = torch.from_numpy(values.astype(np.float16).astype(np.float32))


def tensors(case: str, encoder: torch.nn.Module, projector: torch.nn.Module) -> dict[str, np.ndarray]:
    """As an mmproj file has them: matrices in float16, the rest in float32."""
    found = {}
    for name, parameter in encoder.named_parameters():
        plain = name.removeprefix("vision_model.")
        array = parameter.detach().numpy()
        if plain in WHOLE:
            target = WHOLE[plain]
        elif plain.startswith("encoder.layers."):
            _, _, layer, rest = plain.split(".", 3)
            module, kind = rest.rsplit(".", 1)
            if case == "mlp" and int(layer) == SIZES[case][2] - 1:
                continue  # LLaVA takes what goes into the last block
            target = f"v.blk.{layer}.{BLOCK[module]}.{kind}"
        else:
            raise KeyError(name)
        if case == "mlp" and target.startswith("v.post_ln"):
            continue  # LLaVA takes what comes before it
        small = array.ndim == 2 and "position" not in target
        found[target] = array.astype(np.float16) if small else array
    for name, parameter in projector.named_parameters():
        array = parameter.detach().numpy()
        array = array + np.float32(1) if "soft_emb" in name else array
        found[PROJECTORS[case][name]] = array.astype(np.float16) if array.ndim == 2 else array
    return found


def metadata(case: str) -> dict[str, Any]:
    image, patch, blocks = SIZES[case]
    keys: dict[str, Any] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": case,
        "clip.use_gelu": case != "mlp",
        "clip.vision.image_size": image,
        "clip.vision.patch_size": patch,
        "clip.vision.embedding_length": HIDDEN,
        "clip.vision.feed_forward_length": FEED_FORWARD,
        "clip.vision.projection_dim": TEXT,
        "clip.vision.block_count": blocks - (case == "mlp"),
        "clip.vision.attention.head_count": HEADS,
        "clip.vision.attention.layer_norm_epsilon": EPS,
        "clip.vision.image_mean": np.array(MEAN, np.float32),
        "clip.vision.image_std": np.array(STD, np.float32),
    }
    if case in MERGE:
        keys["clip.vision.projector.scale_factor"] = MERGE[case]
    if case == "idefics3":
        keys["clip.vision.preproc_image_size"] = LONGEST
    return keys


def processor(case: str) -> Any:
    image = SIZES[case][0]
    common = {"image_mean": list(MEAN), "image_std": list(STD)}
    if case == "mlp":
        size = {"height": image, "width": image}
        return LlavaImageProcessorPil(do_pad=True, do_center_crop=False, size=size, **common)
    if case == "idefics3":
        return Idefics3ImageProcessorPil(
            size={"longest_edge": LONGEST}, max_image_size={"longest_edge": image}, **common
        )
    return Gemma3ImageProcessorPil(size={"height": image, "width": image}, **common)


def golden(case: str, model: torch.nn.Module, projector: torch.nn.Module) -> dict[str, np.ndarray]:
    """For each picture the pixels that go in, [n, 3, size, size], and the vectors that come out."""
    found = {}
    process = processor(case)
    for i, (width, height) in enumerate(PICTURES):
        rng = np.random.default_rng(i)
        image = picture(width, height, rng)
        options = {"return_tensors": "np"} | ({"return_row_col_info": True} if case == "idefics3" else {})
        done = process.preprocess([Image.fromarray(image)], **options)
        pixels = np.asarray(done["pixel_values"], np.float32)
        pixels = pixels.reshape(-1, *pixels.shape[-3:])
        with torch.no_grad():
            vectors = forward(case, model, torch.from_numpy(pixels))
        found |= {f"image.{i}": image, f"pixels.{i}": pixels, f"vectors.{i}": vectors.numpy()}
        if case == "idefics3":
            found[f"grid.{i}"] = np.array([done["rows"][0][0], done["cols"][0][0]], np.int32)
    return found


def forward(case: str, model: torch.nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """The vectors that the model puts in place of its image tokens."""
    if case == "mlp":
        features = model.get_image_features(pixel_values=pixels, vision_feature_layer=-2)
    elif case == "idefics3":
        features = model.get_image_features(pixel_values=pixels[None])
    else:
        features = model.get_image_features(pixel_values=pixels)
    features = getattr(features, "pooler_output", features)
    if isinstance(features, (tuple, list)):
        features = torch.stack(list(features))
    return features.reshape(len(pixels), -1, features.shape[-1])


def report(name: str, found: dict[str, np.ndarray]) -> None:
    vectors = [found[f"vectors.{i}"] for i in range(len(PICTURES))]
    shapes = ", ".join(str(array.shape) for array in vectors)
    spread = ", ".join(f"{array.std():.2f}" for array in vectors)
    size = (FOLDER / f"{name}.gguf").stat().st_size
    print(f"{name}: {size} bytes, vectors {shapes} vary by {spread}")


def make(name: str) -> dict[str, np.ndarray]:
    """Write the file of one case; return what transformers makes of the pictures."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name in TINY:
        tiny = TINY[name]()
        tiny.fill(rng)
        write_gguf(FOLDER / f"{name}.gguf", tiny.keys(), tiny.tensors())
        found = {}
        for i in range(len(PICTURES)):
            pixels, found[f"vectors.{i}"] = tiny.answer(shown_picture(i))
            if not tiny.variant:
                found[f"pixels.{i}"] = pixels
        if name in SIGHTED:
            found |= make_sighted(name, tiny, rng)
        if name == "qwen35":
            columns = int(tiny.processed(shown_picture(1))[1][0, 2]) // tiny.merge
            vectors = found["vectors.1"][0]
            found |= {"logits": answer_of_qwen35(vectors, columns, BEFORE, AFTER)}
        if name == "llava-next":
            found |= {f"packed.{i}": tiny.packed(shown_picture(i)) for i in range(len(PICTURES))}
        if name == "gemma4v":
            for text in ("gemma4", "gemma4-e"):
                found[f"logits-{text}"] = answer_of_gemma4(text, found["vectors.1"][0], BEFORE, AFTER)
        return found
    model, encoder, projector = build(name)
    model = model.eval().float()
    fill(encoder, rng)
    fill(projector, rng)
    write_gguf(FOLDER / f"{name}.gguf", metadata(name), tensors(name, encoder, projector))
    return golden(name, model, projector)


def make_sighted(name: str, eyes: Qwen3VL, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Write the language model that sees through `eyes`; return what it says about one picture and two."""
    model = SIGHTED[name](eyes, rng)
    write_gguf(FOLDER / f"{model.arch}-text.gguf", model.keys(len(eyes.taps)), model.tensors())
    one, other = (eyes.processed(shown_picture(i)) for i in (1, 2))
    found = {
        "before": np.array(BEFORE),
        "after": np.array(AFTER),
        "logits": model.answer([one], BEFORE, AFTER),
    }
    two = model.answer([other, one], BEFORE, BETWEEN, AFTER)
    return found | {"logits-two": two[-len(AFTER) - 1 :]}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)  # one order of summation
    FOLDER.mkdir(parents=True, exist_ok=True)
    answers: dict[str, dict[str, np.ndarray]] = {"golden": {}, "shapes": {}}
    for name in names or (*SIZES, *TINY):
        found = make(name)
        file = answers["shapes" if name in TINY else "golden"]
        file |= {f"{name}/{key}": value for key, value in found.items()}
        report(name, found)
    for file, arrays in answers.items():
        if names:  # the others stay as they are
            with np.load(FOLDER / f"{file}.npz") as stored:
                arrays = dict(stored) | arrays
        np.savez_compressed(FOLDER / f"{file}.npz", **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
