"""`stretto serve`: models over HTTP, for clients of OpenAI, of Ollama, and for programs of your own."""

from __future__ import annotations

from typing import Any

from stretto.cli import options as o
from stretto.cli.first_run import default_model
from stretto.cli.pull import pull_missing
from stretto.errors import StrettoError


@o.flags("serve", local=True, repeat_guard=True)
def serve(models: o.Served = None, model: o.ServedModels = None, **options: Any) -> None:
    """Serve models over HTTP: OpenAI's and Ollama's clients use them unchanged.

    Listens on this machine only, unless --host says otherwise; then --api-key is needed.
    Point a client at it: OPENAI_BASE_URL=http://localhost:8080/v1, or OLLAMA_HOST=localhost:8080.
    """
    try:
        from stretto.server.http.registry import with_adapters
        from stretto.server.serve import serve as run
        from stretto.server.settings import ModelEntry, Settings, api_keys, parse_arguments, parse_defaults
    except ImportError as error:
        raise StrettoError(
            f"{error.name} is missing; the server needs: pip install 'stretto[server]'"
        ) from None
    named = [o.served(one) for one in (*(models or ()), *(model or ()))] or [default_model()]
    entries = tuple(ModelEntry.parse(text) for text in named)
    entries = with_adapters(ModelEntry.with_vision(entries, options["vision"]), options["adapter"])
    entries = ModelEntry.with_templates(entries, options["chat_template"])
    settings = Settings.of(
        options,
        models=entries,
        api_keys=api_keys(options["api_key"], options["api_key_file"]),
        admin_keys=api_keys(options["admin_key"], options["admin_key_file"], "admin"),
        defaults=parse_defaults(options["default"]),
        template_arguments=parse_arguments(options["chat_template_kwargs"]),
    )
    for entry in entries:
        pull_missing(entry.source)
    names = ", ".join(entry.name for entry in entries)

    def waiting(n_running: int) -> None:
        requests = "1 running request" if n_running == 1 else f"{n_running} running requests"
        print(
            f"waiting up to {settings.grace_seconds:g} s for {requests}; Ctrl-C again to stop at once",
            flush=True,
        )

    run(settings, lambda address: print(f"serving {names} on {address}", flush=True), waiting)
