"""Makes tests/data/sighted: tiny random models that see, as transformers saves them, and what it computes.

    python scripts/make_sighted_folders.py [CASE …]

Needs torch, transformers and Pillow, and torchvision for llama4. A folder holds config.json, the weights in
bfloat16, the configuration of the image processor, and answers.npz: vectors of the pictures of
make_tiny_vision.py, and logits behind texts with one picture (`one`) and two (`two`) between them, with the
tokens of both (`ids-one`, `ids-two`). The whole path is transformers': processor, encoder, language model.
"""

from __future__ import annotations

import copy
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests")]

from make_tiny_vision import shown_picture  # noqa: E402
from tiny.base import randomize  # noqa: E402
from tiny_encoders_more import llama4_tiles  # noqa: E402
from tiny_vision import LLAMA4_SPECIALS, small_tokenizer  # noqa: E402

FOLDER = ROOT / "tests" / "data" / "sighted"
MEAN, STD = [0.5, 0.375, 0.4375], [0.25, 0.3125, 0.28125]
NORM = {"image_mean": MEAN, "image_std": STD}
BEFORE, BETWEEN, AFTER = [5, 17, 33], [3, 11], [8, 2, 60, 41, 7]  # tokens of texts around pictures
VOCABULARY, WIDTH = 96, 16
Layout = Callable[
    [Any, Any], list[int]
]  # tokens of a picture, by what was processed and the number of its vectors


def text(**other: Any) -> dict[str, Any]:
    """The configuration of a language model."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **other,
    }


def vision(**other: Any) -> dict[str, Any]:
    """The configuration of an encoder."""
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "image_size": 24,
        "patch_size": 6,
        **other,
    }


@dataclass
class Case:
    """A model, its image processor, and the tokens of a picture in a prompt."""

    model: Any
    processor: Any
    layout: Layout
    image_token: int
    as_inputs: Callable[[Any, Any], dict[str, torch.Tensor]] = lambda done, picture: tensors(done)


def ids(name: str, specials: tuple[str, ...] | None = None) -> int:
    """The id of a special token in the tests' tokenizer."""
    tokenizer = small_tokenizer() if specials is None else small_tokenizer(specials)
    return tokenizer.specials[name]


def tensors(done: Any) -> dict[str, torch.Tensor]:
    """What a processor made, for the model."""
    wanted = ("pixel_values", "image_grid_thw", "image_sizes")
    found = {name: torch.from_numpy(np.asarray(done[name])) for name in wanted if name in done}
    return {name: one.float() if name == "pixel_values" else one for name, one in found.items()}


def class_of(name: str, module: str) -> Any:
    """A class of transformers that its first page does not have."""
    return getattr(__import__(f"transformers.models.{module}", fromlist=[name]), name)


def newlines(done: Any, n: int) -> list[int]:
    return [ids("<image>")] * n


# -- the cases --


def llava() -> Case:
    token = ids("<image>")
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**vision(num_hidden_layers=3)),
        text_config=t.LlamaConfig(**text()),
        image_token_index=token,
    )
    kind = class_of("LlavaImageProcessorPil", "llava.image_processing_pil_llava")
    square = {"height": 24, "width": 24}
    process = kind(do_pad=True, do_center_crop=False, size=square, **NORM)
    return Case(t.LlavaForConditionalGeneration(config), process, newlines, token)


def llava_next() -> Case:
    token = ids("<image>")
    grids = [[24, 48], [48, 24], [48, 48], [24, 72]]
    config = t.LlavaNextConfig(
        vision_config=t.CLIPVisionConfig(**vision(num_hidden_layers=3)),
        text_config=t.MistralConfig(**text(sliding_window=None)),
        image_grid_pinpoints=grids,
        image_token_index=token,
    )
    kind = class_of("LlavaNextImageProcessorPil", "llava_next.image_processing_pil_llava_next")
    square = {"height": 24, "width": 24}
    process = kind(size={"shortest_edge": 24}, crop_size=square, image_grid_pinpoints=grids, **NORM)
    return Case(t.LlavaNextForConditionalGeneration(config), process, newlines, token)


def rows_of(done: Any, n: int) -> list[int]:
    """Rows of a Pixtral, with a token behind each."""
    height, width = (int(side) for side in done["image_sizes"][0])
    columns = next(c for c in range(1, n + 1) if n % c == 0 and round(n / c * width / height) == c)
    row, last = [ids("[IMG]")] * columns, n // columns - 1
    ends = [ids("[IMG_BREAK]")] * last + [ids("[IMG_END]")]
    return [token for end in ends for token in (*row, end)]


def pixtral_processor(patch: int) -> Any:
    kind = class_of("PixtralImageProcessorPil", "pixtral.image_processing_pil_pixtral")
    return kind(size={"longest_edge": 48}, patch_size={"height": patch, "width": patch}, **NORM)


def pixtral_tower() -> Any:
    return t.PixtralVisionConfig(**vision(image_size=48, patch_size=4, hidden_act="silu"))


def pixtral() -> Case:
    config = t.LlavaConfig(
        vision_config=pixtral_tower(),
        text_config=t.MistralConfig(**text(sliding_window=None)),
        image_token_index=ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return Case(t.LlavaForConditionalGeneration(config), pixtral_processor(4), rows_of, ids("[IMG]"))


def mistral3() -> Case:
    config = t.Mistral3Config(
        vision_config=pixtral_tower(),
        text_config=t.MistralConfig(**text(sliding_window=None)),
        image_token_index=ids("[IMG]"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    return Case(t.Mistral3ForConditionalGeneration(config), pixtral_processor(8), rows_of, ids("[IMG]"))


def qwen_processor() -> Any:
    kind = class_of("Qwen2VLImageProcessorPil", "qwen2_vl.image_processing_pil_qwen2_vl")
    size = {"shortest_edge": 1024, "longest_edge": 4096}
    return kind(patch_size=4, merge_size=2, size=size, **NORM)


def between_two(done: Any, n: int) -> list[int]:
    return [ids("<|vision_start|>"), *[ids("<|image_pad|>")] * n, ids("<|vision_end|>")]


def qwen(config: Any, model: Any, sections: list[int], tower: dict[str, Any], **more: Any) -> Case:
    rope = {"rope_type": "default", "rope_theta": 700.0, "mrope_section": sections, **more}
    language = text(head_dim=16, rope_parameters=rope, tie_word_embeddings=True)
    if "mrope_interleaved" not in more:
        language |= {"num_attention_heads": 1, "num_key_value_heads": 1}
        del language["head_dim"]
    sizes = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    made = config(
        text_config=language,
        vision_config=sizes | tower,
        image_token_id=ids("<|image_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    return Case(model(made), qwen_processor(), between_two, ids("<|image_pad|>"))


def qwen2_vl() -> Case:
    tower = {"embed_dim": WIDTH, "hidden_size": WIDTH, "mlp_ratio": 2}
    return qwen(t.Qwen2VLConfig, t.Qwen2VLForConditionalGeneration, [2, 3, 3], tower)


def qwen2_5_vl() -> Case:
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "out_hidden_size": WIDTH,
        "window_size": 24,
        "fullatt_block_indexes": [1],
    }
    return qwen(t.Qwen2_5_VLConfig, t.Qwen2_5_VLForConditionalGeneration, [2, 3, 3], tower)


def qwen3_vl() -> Case:
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "out_hidden_size": WIDTH,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1],
    }
    config, model = t.Qwen3VLConfig, t.Qwen3VLForConditionalGeneration
    return qwen(config, model, [3, 3, 2], tower, mrope_interleaved=True)


def internvl() -> Case:
    token = ids("<image>")
    config = t.InternVLConfig(
        vision_config=t.InternVLVisionConfig(
            **vision(image_size=[24, 24], patch_size=[4, 4], attention_bias=True, use_mean_pooling=True)
        ),
        text_config=t.Qwen2Config(**text()),
        image_token_id=token,
    )
    kind = class_of("GotOcr2ImageProcessorPil", "got_ocr2.image_processing_pil_got_ocr2")
    square = {"height": 24, "width": 24}
    process = kind(size=square, crop_to_patches=True, min_patches=1, max_patches=4, **NORM)
    model = t.InternVLForConditionalGeneration(config)
    return Case(model, process, lambda done, n: [ids("<img>"), *[token] * n, ids("</img>")], token)


def gemma3() -> Case:
    token = ids("<image>")
    config = t.Gemma3Config(
        vision_config=t.SiglipVisionConfig(**vision(image_size=32, patch_size=4, vision_use_head=False)),
        text_config=t.Gemma3TextConfig(**text(query_pre_attn_scalar=8, sliding_window=256)),
        mm_tokens_per_image=4,
        image_token_index=token,
    )
    kind = class_of("Gemma3ImageProcessorPil", "gemma3.image_processing_pil_gemma3")
    process = kind(size={"height": 32, "width": 32}, **NORM)
    tokenizer = small_tokenizer()
    line = tokenizer.encode("\n\n")

    def layout(done: Any, n: int) -> list[int]:
        return [*line, ids("<start_of_image>"), *[token] * n, ids("<end_of_image>"), *line]

    return Case(t.Gemma3ForConditionalGeneration(config), process, layout, token)


def smolvlm() -> Case:
    token = ids("<image>")
    config = t.SmolVLMConfig(
        vision_config=vision(image_size=32, patch_size=8),
        text_config=t.LlamaConfig(**text()),
        scale_factor=2,
        image_token_id=token,
    )
    kind = class_of("SmolVLMImageProcessorPil", "smolvlm.image_processing_pil_smolvlm")
    process = kind(size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, **NORM)
    tokenizer = small_tokenizer()

    def layout(done: Any, n: int) -> list[int]:
        rows, columns = int(done["rows"][0][0]), int(done["cols"][0][0])
        each, around, found = n // (rows * columns + 1), ids("<fake_token_around_image>"), []
        for row in range(rows):
            for column in range(columns):
                found += [around, ids(f"<row_{row + 1}_col_{column + 1}>"), *[token] * each]
            found += tokenizer.encode("\n\n" if row == rows - 1 else "\n")
        return [*found, around, ids("<global-img>"), *[token] * each, around]

    return Case(t.SmolVLMForConditionalGeneration(config), process, layout, token)


def llama4() -> Case:
    def special(name: str) -> int:
        return ids(name, LLAMA4_SPECIALS)

    tower = vision(patch_size=4, pixel_shuffle_ratio=0.5)
    tower |= {f"{name}_dim": 20 for name in ("projector_input", "projector_output", "vision_output")}
    tower["intermediate_size"] = 4 * WIDTH  # as many numbers as a square of patches has
    config = t.Llama4Config(
        vision_config=t.Llama4VisionConfig(**tower),
        text_config=t.Llama4TextConfig(
            **text(
                intermediate_size_mlp=24,
                num_local_experts=2,
                num_experts_per_tok=1,
                interleave_moe_layer_step=2,
                attention_chunk_size=512,
                no_rope_layers=[1, 0],
            )
        ),
        image_token_index=special("<|patch|>"),
    )
    kind = class_of("Llama4ImageProcessor", "llama4.image_processing_llama4")
    process = kind(size={"height": 24, "width": 24}, max_patches=4, **NORM)

    def layout(done: Any, n: int) -> list[int]:
        rows, columns = done["grid"]
        each, found = n // len(done["pixel_values"]), [special("<|image_start|>")]
        for tile in range(rows * columns if rows * columns > 1 else 0):
            ends = (tile + 1) % columns == 0
            found += [special("<|patch|>")] * each
            found += [special("<|tile_y_separator|>" if ends else "<|tile_x_separator|>")]
        return [*found, special("<|image|>"), *[special("<|patch|>")] * each, special("<|image_end|>")]

    return Case(t.Llama4ForConditionalGeneration(config), process, layout, special("<|patch|>"))


CASES: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (llava, llava_next, pixtral, mistral3, qwen2_vl, qwen2_5_vl, qwen3_vl, internvl, gemma3)
} | {"smolvlm": smolvlm, "llama4": llama4}


def processed(name: str, case: Case, picture: Any) -> dict[str, Any]:
    """What the model's processor makes of a picture."""
    if name == "llama4":
        pixels, grid = llama4_tiles(picture, 24, 4, MEAN, STD)
        return {"pixel_values": pixels, "grid": grid}
    options = {"return_row_col_info": True} if name == "smolvlm" else {}
    return dict(case.processor.preprocess([picture], return_tensors="np", **options))


def features(model: Any, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """float32[n, numbers]: the vectors that stand in place of one picture's tokens."""
    config, options = model.config, {}
    if "vision_feature_layer" in config:
        options["vision_feature_layer"] = config.vision_feature_layer
    found = model.get_image_features(**inputs, **options)
    deep = getattr(found, "deepstack_features", None)
    if type(model).__name__.startswith("Llama4"):
        found = model.multi_modal_projector(found.last_hidden_state)
    found = getattr(found, "pooler_output", found)
    if isinstance(found, (tuple, list)):
        found = torch.cat([one.reshape(-1, one.shape[-1]) for one in found])
    found = found.reshape(-1, found.shape[-1])
    features = [torch.cat(one) if isinstance(one, (tuple, list)) else one for one in deep or ()]
    return torch.cat((found, *features), dim=-1).numpy()


def padded(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors with zeros behind each axis but the first, so that all have the same."""
    sizes = [max(part.shape[axis] for part in parts) for axis in range(1, parts[0].ndim)]
    ends = [[n - size for n, size in zip(sizes, part.shape[1:], strict=True)] for part in parts]
    flat = [[n for end in reversed(behind) for n in (0, end)] for behind in ends]
    return [torch.nn.functional.pad(part, pad) for part, pad in zip(parts, flat, strict=True)]


def logits(model: Any, case: Case, pictures: list[dict[str, torch.Tensor]], tokens: list[int]) -> np.ndarray:
    """float32[n, n_vocab] of a prompt with pictures."""
    both = {name: torch.cat(padded([one[name] for one in pictures])) for name in pictures[0]}
    kinds = [int(token == case.image_token) for token in tokens]
    options: dict[str, Any] = {"use_cache": False}
    if "image_grid_thw" in both:
        options["mm_token_type_ids"] = torch.tensor([kinds])
    if type(model).__name__.startswith("Gemma3"):
        options["token_type_ids"] = torch.tensor([kinds])
    return model(input_ids=torch.tensor([tokens]), **both, **options).logits[0].numpy()


def make(name: str) -> None:
    """Write one folder."""
    case = CASES[name]()
    model = case.model.eval().float()
    model.config._attn_implementation = "eager"
    randomize(
        model, np.random.default_rng(zlib.crc32(name.encode())), norms_at_zero=lambda n: at_zero(name, n)
    )
    for parameter in model.parameters():  # buffers keep their precision
        parameter.data = parameter.data.bfloat16().float()
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    case.processor.save_pretrained(folder)
    pictures = [shown_picture(i) for i in (1, 2)]
    done = [processed(name, case, picture) for picture in pictures]
    inputs = [tensors(one) for one in done]
    found: dict[str, np.ndarray] = {}
    with torch.no_grad():
        vectors = [features(model, one) for one in inputs]
        runs = [case.layout(one, len(rows)) for one, rows in zip(done, vectors, strict=True)]
        one, two = [*BEFORE, *runs[0], *AFTER], [*BEFORE, *runs[1], *BETWEEN, *runs[0], *AFTER]
        found |= {"ids-one": np.array(one), "one": logits(model, case, inputs[:1], one)}
        found |= {"ids-two": np.array(two), "two": logits(model, case, inputs[::-1], two)}
    found |= {f"vectors.{i}": rows for i, rows in zip((1, 2), vectors, strict=True)}
    tail = len(AFTER) + 1
    found |= {key: found[key][-tail:] for key in ("one", "two")}
    np.savez_compressed(folder / "answers.npz", **found)
    size = sum(path.stat().st_size for path in folder.iterdir())
    spread = [f"{found[key].std():.2f}" for key in ("vectors.1", "vectors.2", "one", "two")]
    print(f"{name}: {size} bytes, {[len(rows) for rows in vectors]} vectors, spread {', '.join(spread)}")


def at_zero(name: str, parameter: str) -> bool:
    """Whether a norm adds one to its weights itself."""
    return name == "gemma3" and ("language_model" in parameter or "soft_emb" in parameter)


def main(names: list[str]) -> None:
    """Write the named folders, or all."""
    torch.set_num_threads(1)
    for name in names or CASES:
        make(name)


if __name__ == "__main__":
    main(sys.argv[1:])
