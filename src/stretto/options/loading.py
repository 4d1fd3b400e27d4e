"""The options of `stretto.load`."""

from __future__ import annotations

from stretto.options.option import Option

LOAD = (
    Option(
        "backend",
        "str",
        "auto",
        'What runs the model; "auto" takes the fastest that can (stretto docs routing), and llm.route '
        "says what was chosen, what else was possible, and why not.",
    ),
    Option("device", "str", "auto", 'Where it runs: "cpu", "cuda" …; "auto" chooses by measurement.'),
    Option("threads", "int | None", None, "Threads that compute; None: as many as suit the machine."),
    Option(
        "cells",
        'int | "auto"',
        8192,
        'Size of the KV cache in tokens, shared by all sequences, and so the longest context; "auto" takes '
        "what is free on a GPU (stretto docs cuda), and 8,192 on a CPU.",
    ),
    Option(
        "kv",
        '"f16" | "q8" | "f32" | "bf16" | "fp8"',
        "f16",
        'Type of the KV cache; "q8" halves its memory, "f32" doubles it and rounds nothing; "bf16" and "fp8" '
        "are for GPUs (stretto docs cuda).",
    ),
    Option(
        "precision",
        '"standard" | "high"',
        "standard",
        'Activations in 8 bits; "high": in 16, nearer to the weights, and slower (stretto docs precision).',
    ),
    Option(
        "repack",
        'bool | "auto" | "shared"',
        "auto",
        "Pack the weights in memory. False reads them from the file, for one larger than memory: a little "
        'slower, the same results. "auto" does so if they do not fit; llm.backend.placement says what was '
        'chosen and why. "shared" packs them into a file under ~/.cache/stretto/packed that all processes '
        "map, so that many processes hold them once. For an ONNX folder on the CPU, False leaves its "
        "products to ONNX Runtime; llm.backend.packing says who computes them.",
    ),
    Option(
        "quantize",
        "str | None",
        None,
        'Quantise the weights while they are loaded, such as "q4_k" (stretto docs mixes has the names), '
        "for a file or folder in F16, BF16 or F32; the file stays as it is.",
    ),
    Option(
        "exact",
        "bool",
        True,
        "False lets a GPU use its fastest kernels, whose last bits depend on what else is in the batch; a "
        "CPU is exact either way.",
    ),
    Option(
        "chat_template",
        "str | PathLike | None",
        None,
        "A chat template in place of the model's own: Jinja, the path of a file with it, or a name such as "
        "chatml or llama3.",
    ),
    Option("prefix_cache", "bool", True, "Keep the KV cache of prompts for later ones that begin alike."),
    Option(
        "limits",
        "Limits | None",
        None,
        "A stretto.Limits: how many requests may run and wait, how long a step may take, how many bytes the "
        "checkpoints of recurrent layers may take (stretto docs cache).",
    ),
    Option("vision", "path | None", None, "The mmproj file that lets the model see images."),
    Option(
        "image_cache",
        "bool | path | ImageCache",
        True,
        "Keep encoded images, 64 MiB in memory and 512 MiB in files under ~/.cache/stretto/images, so that "
        "none is encoded twice; another folder, a stretto.ImageCache with limits of your own, or False to "
        "keep nothing.",
    ),
)
