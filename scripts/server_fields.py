"""The tables of docs/reference/server.md: what becomes of each field of a request, made from the schemas.

python scripts/server_fields.py       # writes them into docs/reference/server.md
"""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from stretto.server.anthropic.schemas import CountRequest, MessagesRequest
from stretto.server.generation.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from stretto.server.llama_cpp.models import NativeEmbedding
from stretto.server.llama_cpp.schemas import InfillRequest, NativeCompletion
from stretto.server.openai.responses_request import ResponseRequest

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "server.md"
START, END = "<!-- fields -->\n", "<!-- end of fields -->"
TABLES = (
    {
        "/v1/chat/completions": ChatRequest,
        "/v1/completions": CompletionRequest,
        "/v1/responses": ResponseRequest,
        "/v1/embeddings": EmbeddingRequest,
    },
    {"/v1/messages": MessagesRequest, "/v1/messages/count_tokens": CountRequest},
    {"/completion": NativeCompletion, "/infill": InfillRequest, "/embedding": NativeEmbedding},
)
REFUSED = {  # fields that the protocols have, and this server does not
    "/v1/chat/completions": ("audio", "moderation", "prompt_cache_options", "web_search_options"),
    "/v1/responses": (
        *("access_programs", "context_management", "conversation", "image", "moderation", "prompt"),
        "prompt_cache_options",
    ),
    "/v1/messages": ("compaction", "container", "diagnostics", "fallbacks", "mcp_servers", "thread"),
}


def fate(field: Any) -> str:
    """What becomes of a field of a schema."""
    texts = [field.description or ""]
    kinds = [field.annotation]
    literals = []
    while kinds:
        kind = kinds.pop()
        texts += [getattr(one, "description", "") or "" for one in getattr(kind, "__metadata__", ())]
        if get_origin(kind) is Literal:
            literals += get_args(kind)
        elif kind is not type(None):
            literals += [None] * (not get_args(kind))  # any value of a type
            kinds += get_args(kind)
    if any(text.startswith("Accepted") for text in texts):
        return "accepted"
    if len(literals) == 1 and literals[0] is not None:
        return f"only `{str(literals[0]).lower()}`"
    return "honoured"


def fates(path: str, model: Any) -> dict[str, str]:
    """What becomes of the fields of a body, by name."""
    found = {field.alias or name: fate(field) for name, field in model.model_fields.items()}
    return found | dict.fromkeys(REFUSED.get(path, ()), "refused")


def tables() -> str:
    """The tables."""
    written = []
    for bodies in TABLES:
        columns = {path: fates(path, model) for path, model in bodies.items()}
        names = sorted({name for column in columns.values() for name in column})
        rows = [["field", *(f"`{path}`" for path in columns)], ["---"] * (1 + len(columns))]
        rows += [[f"`{name}`", *(column.get(name, "") for column in columns.values())] for name in names]
        written.append("".join(f"| {' | '.join(row)} |\n" for row in rows))
    return "\n".join(written)


def main() -> None:
    """Write them."""
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}{tables()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
