"""`stretto serve`: models over HTTP, for clients of OpenAI, of Ollama, and for programs of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stretto.cli import options as o
from stretto.cli.first_run import default_model
from stretto.cli.pull import pull_missing
from stretto.errors import InvalidRequest, StrettoError

_ACCESS = "Access"
_MODELS = "Models and memory"
_LIMITS = "Limits"

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def serve(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=]MODEL", help="As --model.", show_default=False)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="[NAME=]MODEL",
            help="A name, a path, or hf:org/repo:Q4_K_M; may be repeated. Loaded on first use "
            f"(default: {o.DEFAULT_SHOWN}).",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    vision: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="The mmproj file of a model's image encoder; may be repeated.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    chat_template: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="A chat template in place of the model's own: a file of Jinja, its text, or a name "
            "such as chatml; may be repeated.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='Arguments of chat templates for requests that do not set them, as {"enable_thinking": '
            "false}; a template that does not read one goes without it.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL:]NAME=PATH",
            help="A LoRA adapter of a model, a GGUF file or a PEFT folder; may be repeated. Requests give "
            "MODEL:NAME as their model.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of generation for requests that do not set it, as temperature=0.6; may be "
            "repeated. overflow=shift forgets the oldest tokens when the context is full.",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What loaded models may take together, as 8GB; the least recently used is unloaded "
            "(default: 80 % of what is free).",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    unload_after: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Unload a model that no request has used for so long; the next one loads it again "
            "(default: it stays until memory is needed).",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    cells: Annotated[
        Any,  # int | str
        typer.Option(
            parser=o.read_cells,
            metavar="N|auto",
            help="The cache of each model, in tokens; auto: what is free on a GPU, for one model.",
            rich_help_panel=_MODELS,
        ),
    ] = 8192,
    checkpoints: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="What checkpoints of recurrent layers may take, for each model that has them.",
            rich_help_panel=_MODELS,
        ),
    ] = "512MiB",
    kv: Annotated[
        Literal["f16", "q8", "bf16", "fp8"],
        typer.Option(
            help="Type of the KV cache; q8 takes half the memory. GPUs also have bf16 and fp8.",
            rich_help_panel=_MODELS,
        ),
    ] = "f16",
    precision: Annotated[
        Literal["standard", "high"],
        typer.Option(help="Activations in 8 bits, or in 16: slower, exacter.", rich_help_panel=_MODELS),
    ] = "standard",
    repack: o.Repack = "auto",
    threads: o.Threads = None,
    backend: o.Backend = "auto",
    device: o.Device = "auto",
    host: Annotated[
        str,
        typer.Option(help="The address to listen on, or several, as 127.0.0.1,::1.", rich_help_panel=_ACCESS),
    ] = "127.0.0.1",
    local: Annotated[
        bool,
        typer.Option(
            "--socket/--no-socket",
            help="Listen on a Unix socket too, where your own stretto run, chat, ps and stop find it.",
            rich_help_panel=_ACCESS,
        ),
    ] = True,
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", rich_help_panel=_ACCESS)] = 8080,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Clients have to send it; may be repeated. Others on this machine can see it here: "
            "STRETTO_API_KEY and --api-key-file are better places.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line.", rich_help_panel=_ACCESS)
    ] = None,
    admin_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A key that may also load, unload and pull models, and see all callers' cells and requests; "
            "may be repeated. STRETTO_ADMIN_KEY and --admin-key-file are better places.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    admin_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Admin keys, one a line.", rich_help_panel=_ACCESS)
    ] = None,
    share_prefixes: Annotated[
        bool,
        typer.Option(
            "--share-prefixes",
            help="Share the prefix cache between keys; a caller can then find out what others asked.",
            rich_help_panel=_ACCESS,
        ),
    ] = False,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve without API keys.", rich_help_panel=_ACCESS)
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Web pages from there may use the server, as https://example.org; localhost: from this "
            "machine; '*': from everywhere; may be repeated.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name under which the server may be reached without keys, as box.lan; may be repeated.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    disable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="A path that is not served, as /metrics, /slots or /api; /: the page; may be repeated.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    slot_save_path: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where POST /slots/ID?action=save writes texts with their K and V, for administrators.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    remote_images: Annotated[
        bool,
        typer.Option(
            "--remote-images", help="Fetch images from public URLs in requests.", rich_help_panel=_ACCESS
        ),
    ] = False,
    repeat_guard: Annotated[
        bool,
        typer.Option(
            "--repeat-guard/--no-repeat-guard",
            help="End texts whose last 400 tokens or more are one passage, four times at least; requests can "
            "say otherwise (repeat_guard).",
            rich_help_panel=_LIMITS,
        ),
    ] = True,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse requests of which a field cannot be granted (thinking, an unknown option of Ollama) "
            "instead of answering with a warning.",
            rich_help_panel=_ACCESS,
        ),
    ] = False,
    max_running: Annotated[
        int, typer.Option(help="Requests that run at once.", rich_help_panel=_LIMITS)
    ] = 64,
    max_queue: Annotated[
        int, typer.Option(help="Requests that wait; more are refused with 429.", rich_help_panel=_LIMITS)
    ] = 256,
    max_time: Annotated[
        float, typer.Option(metavar="SECONDS", help="What a request may take.", rich_help_panel=_LIMITS)
    ] = 600.0,
    max_body: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest body of a request.", rich_help_panel=_LIMITS)
    ] = "16MiB",
    max_n: Annotated[int, typer.Option(help="Texts from one prompt.", rich_help_panel=_LIMITS)] = 16,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Seconds that running requests have after a signal to end.",
            rich_help_panel=_LIMITS,
        ),
    ] = 10.0,
    log: Annotated[
        Literal["quiet", "text", "json"],
        typer.Option(help="Log on stderr: errors only, or every request, as text or JSON."),
    ] = "quiet",
) -> None:
    """Serve models over HTTP: OpenAI's and Ollama's clients use them unchanged.

    Listens on this machine only, unless --host says otherwise; then --api-key is needed.
    Point a client at it: OPENAI_BASE_URL=http://localhost:8080/v1, or OLLAMA_HOST=localhost:8080.
    """
    try:
        from stretto.server.adapters import with_adapters
        from stretto.server.defaults import parse_arguments, parse_defaults
        from stretto.server.serve import serve as run
        from stretto.server.settings import ModelEntry, RequestLimits, Settings, api_keys
    except ImportError as error:
        raise StrettoError(
            f"{error.name} is missing; the server needs: pip install 'stretto[server]'"
        ) from None
    named = [o.served(one) for one in (*(models or ()), *(model or ()))] or [default_model()]
    entries = tuple(ModelEntry.parse(text) for text in named)
    entries = with_adapters(ModelEntry.with_vision(entries, vision or ()), adapter or ())
    entries = ModelEntry.with_templates(entries, chat_template or ())
    settings = Settings(
        models=entries,
        host=host,
        port=port,
        api_keys=api_keys(api_key, api_key_file),
        admin_keys=api_keys(admin_key, admin_key_file, "admin"),
        share_prefixes=share_prefixes,
        no_auth=no_auth,
        origins=tuple(allow_origin or ()),
        hosts=tuple(allow_host or ()),
        disabled=tuple(disable or ()),
        idle_seconds=unload_after,
        remote_images=remote_images,
        local=local,
        slot_path=slot_save_path,
        defaults=parse_defaults(default or ()),
        template_arguments=parse_arguments(chat_template_kwargs),
        repeat_guard=repeat_guard,
        strict=strict,
        memory=None if memory is None else size("--memory", memory),
        checkpoint_bytes=size("--checkpoints", checkpoints),
        cells=cells,
        kv=kv,
        precision=precision,
        repack=o.REPACK[repack],
        backend=backend,
        device=device,
        threads=threads,
        max_running=max_running,
        max_queue=max_queue,
        grace_seconds=grace,
        log=log,
        limits=RequestLimits(n=max_n, seconds=max_time, body=size("--max-body", max_body)),
    )
    for entry in entries:
        pull_missing(entry.source)
    names = ", ".join(entry.name for entry in entries)

    def waiting(n_running: int) -> None:
        requests = "1 running request" if n_running == 1 else f"{n_running} running requests"
        print(f"waiting up to {grace:g} s for {requests}; Ctrl-C again to stop at once", flush=True)

    run(settings, lambda address: print(f"serving {names} on {address}", flush=True), waiting)


def size(name: str, text: str) -> int:
    """Bytes from `8GB`, `512MiB` or `1000000`.

    >>> size("--memory", "2GB")
    2000000000
    """
    cleaned = text.strip().upper().removesuffix("B")
    digits = cleaned.rstrip("KMGTI ")
    unit = cleaned[len(digits) :].strip()
    try:
        number = float(digits)
    except ValueError:
        number = 0.0
    if unit not in UNITS or not 0 < number < 1e15:
        raise InvalidRequest(f"{name} takes a size like 8GB or 512MiB, not {text!r}")
    return int(number * UNITS[unit])
