"""The options of `stretto serve` and of replicas, beside those of loading: access, memory, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stretto.options.generating import BY_NAME as GENERATING
from stretto.options.loading import DISK, MACHINE
from stretto.options.option import Option, table

Log = Literal["quiet", "text", "json"]

SHARED = "serve deploy"
NAMED_FILE = "[NAME=]FILE"

_MODELS = table(
    Option("vision", tuple[str, ...], (), "The mmproj file of a model's encoder of images or sounds.",
        unit=NAMED_FILE),
    Option("chat_template", tuple[str, ...], (),
        "A chat template in place of the model's own: a file of Jinja, its text, or a name such as chatml.",
        unit=NAMED_FILE),
    Option("chat_template_kwargs", str | None, None,
        'Arguments of chat templates for requests that do not set them, as {"enable_thinking": false}; a '
        "template that does not read one goes without it.",
        unit="JSON"),
    Option("adapter", tuple[str, ...], (),
        "A LoRA adapter of a model, a GGUF file or a PEFT folder. Requests give MODEL:NAME as their model.",
        unit="[MODEL:]NAME=PATH"),
    Option("default", tuple[str, ...], (),
        "An option of generation for requests that do not set it, as temperature=0.6. overflow=shift forgets "
        "the oldest tokens when the context is full.",
        unit="NAME=VALUE"),
    commands="serve", panel="Models and memory",
)  # fmt: skip

_KEYS = table(
    Option("api_key", tuple[str, ...], (),
        "Clients have to send it. Others on this machine can see it here: STRETTO_API_KEY and --api-key-file "
        "are better places.",
        unit="KEY"),
    Option("api_key_file", Path | None, None, "Keys, one a line.", unit="FILE"),
    Option("admin_key", tuple[str, ...], (),
        "A key that may also load, unload and pull models, and see all callers' cells and requests. "
        "STRETTO_ADMIN_KEY and --admin-key-file are better places.",
        unit="KEY"),
    Option("admin_key_file", Path | None, None, "Admin keys, one a line.", unit="FILE"),
    commands="serve", panel="Access",
)  # fmt: skip

OWN = table(
    Option("host", str, "127.0.0.1", "The address to listen on, or several, as 127.0.0.1,::1.",
        commands="serve"),
    Option("local", bool, False,
        "Listen on a Unix socket too, where your own stretto run, chat, ps and stop find it.",
        commands="serve", flag="--socket/--no-socket"),
    Option("port", int, 8080, "The port; 0 takes a free one.", low=0, high=65535, commands="serve"),
    Option("share_prefixes", bool, False,
        "Share the prefix cache between keys; a caller can then find out what others asked."),
    Option("no_auth", bool, False, "Serve without API keys."),
    Option("origins", tuple[str, ...], (),
        "Web pages from there may use the server, as https://example.org; localhost: from this machine; '*': "
        "from everywhere.",
        commands="serve", flag="--allow-origin", unit="ORIGIN"),
    Option("hosts", tuple[str, ...], (),
        "A name under which the server may be reached without keys, as box.lan.",
        commands="serve", flag="--allow-host", unit="NAME"),
    Option("disabled", tuple[str, ...], (),
        "A path that is not served, as /metrics, /slots or /api; /: the page.",
        commands="serve", flag="--disable", unit="PATH"),
    Option("slot_path", Path | None, None,
        "Where POST /slots/ID?action=save writes texts with their K and V, for administrators.",
        commands="serve", flag="--slot-save-path", unit="FOLDER"),
    Option("remote_images", bool, False, "Fetch images from public URLs in requests."),
    Option("billing_line", bool, False,
        "Keep the line x-anthropic-billing-header that Claude Code puts before its system prompt. It changes "
        "with every request, so nothing behind it is found in the prefix cache; by default it is left out.",
        commands="serve", flag="--keep-billing-line"),
    Option("strict", bool, False,
        "Refuse requests of which a field cannot be granted (thinking, an unknown option of Ollama) instead "
        "of answering with a warning.",
        commands="serve"),
    commands=SHARED, panel="Access",
) + table(
    Option("memory", int | None, None,
        "What loaded models may take together; the least recently used is unloaded. By default 80 % of what "
        "is free.",
        low=1, high=1e15, unit="bytes"),
    Option("idle_seconds", float | None, None,
        "Unload a model that no request has used for so long; the next one loads it again. By default it "
        "stays until memory is needed.",
        low=0, high=1e9, above=True, commands="serve", flag="--unload-after", unit="seconds"),
    Option("load_seconds", float, 120.0, "How long a request waits for memory for its model.",
        low=0, high=1e9, above=True, commands="serve", flag="--max-wait", unit="seconds"),
    Option("checkpoint_bytes", int, 512 << 20,
        "What checkpoints of recurrent layers may take, for each model that has them.",
        low=0, high=1 << 50, commands="serve", flag="--checkpoints", unit="bytes"),
    commands=SHARED, panel="Models and memory",
) + table(
    Option("max_running", int, 64, "Requests that run at once.", low=1, high=1 << 16),
    Option("max_queue", int, 256, "Requests that wait; more are refused with 429.", low=0, high=1 << 16),
    Option("key_requests", int | None, None,
        "Requests of one key that may be there at once; more are refused with 429. A key with limits of its "
        "own has them behind it: KEY requests=8 tokens=60000 cells=4096 weight=2.",
        low=1, high=1 << 16, commands="serve"),
    Option("key_tokens", int | None, None,
        "Tokens a minute that may be computed for one key: of prompts, without cached ones, and of answers.",
        low=1, high=1 << 40, commands="serve"),
    Option("key_cells", int | None, None,
        "Cells that the prompts of one key's requests may ask for together.",
        low=1, high=1 << 40, commands="serve"),
    Option("max_seconds", float, 600.0, "What a request may take.",
        low=0, high=1e9, above=True, flag="--max-time", unit="seconds"),
    Option("max_body", int, 16 << 20, "Largest body of a request.", low=1, high=1 << 40, unit="bytes"),
    Option("max_n", int, 16, "Texts from one prompt.", low=1, high=1 << 16),
    Option("max_sequences", int, 64, "Sequences of /v1/sequences that a key may have open.",
        low=1, high=1 << 16, commands="serve"),
    Option("sequence_seconds", float, 600.0,
        "Close a sequence of /v1/sequences that no request has used for so long.",
        low=0, high=1e9, above=True, commands="serve", flag="--sequence-idle", unit="seconds"),
    Option("grace_seconds", float, 10.0, "Seconds that running requests have after a signal to end.",
        low=0, high=1e9, above=True, flag="--grace", unit="seconds"),
    commands=SHARED, panel="Limits",
) + table(
    Option("log", Log, "quiet", "Log on stderr: errors only, or every request, as text or JSON."),
    commands=SHARED,
)  # fmt: skip

LIMITS = {"max_n": "n", "max_seconds": "seconds", "max_body": "body"}  # as limits of requests have them
SERVE = (*MACHINE, *OWN, *DISK, GENERATING["repeat_guard"])
FLAGS = (*_MODELS, *_KEYS, *OWN)
BY_NAME = {option.name: option for option in SERVE}
