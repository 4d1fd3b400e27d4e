"""docs/reference/options.md: every option by name, as the tables have them."""

from stretto.options import generating
from stretto.options.loading import LOAD
from stretto.options.option import Table

HEAD = """# Options

Every option by name, with its type, default and meaning: the same that `help(stretto.LLM.generate)` shows,
and the server's `/docs` for the fields that it shares. Unknown names raise `InvalidRequest`; the error for a
name of llama-cpp-python, transformers, vLLM or Ollama says what it is called here.
[What can be combined](combinations.md) lists options that exclude each other.

The options of a call are for all its prompts; `generate(prompts, progress=True)` shows a bar for them.
Prompts with options of their own are streams, which run in the same steps
([examples/many_requests.py](../../examples/many_requests.py)).

```python
import stretto

llm = stretto.load("smollm2")
requests = [("The sea is", {"temperature": 0}), ("The moon is", {"seed": 3, "stop": "."})]
streams = [llm.stream(prompt, max_tokens=16, **options) for prompt, options in requests]
texts = [stream.result.text for stream in streams]
llm.close()
```

`scripts/doc_reference.py` writes this page.
"""
SECTIONS = (
    (
        "`generate`, `stream`, `chat`, `step`: sampling",
        "Defaults may be the model's own (`llm.defaults`: a folder's `generation_config.json`, a GGUF file's "
        "`general.sampling.…`). `seq.step` and `llm.step` take these only.",
        generating.SAMPLING,
    ),
    (
        "`generate`, `stream`, `chat`: where the text ends",
        "`repeat_guard` is on in `stretto run`, `chat` and `serve`, and off in Python. It looks at every "
        "16th token, which costs about a microsecond a token. Every loop, batch, draft and stream ends a "
        "text at the same token, and each text of `n` and each beam has a guard of its own. Neither the "
        "prompt nor the text that a call continues counts. With a grammar, tokens that the model chose "
        "count, and forced ones do not.",
        generating.LIMITS,
    ),
    ("`generate`, `stream`, `chat`: control", "", generating.CONTROL),
    ("`generate`, `chat`: several texts", "", generating.BRANCHING),
    ("`generate`, `stream`, `chat`: context, drafts, adapters", "", generating.CONTEXT),
    (
        "`chat`: the template",
        "Besides: `stream`, `tools`, `tool_choice` and `parallel_tool_calls`.",
        (generating.TEMPLATE,),
    ),
    ("`parallel`", "Besides: those above that end a text, and control it.", generating.PARALLEL_OWN),
    ("`stretto.load`", "", LOAD),
)


def page() -> str:
    """The text of docs/reference/options.md."""
    parts = [HEAD]
    for title, note, table in SECTIONS:
        parts.append("\n".join(filter(None, (f"## {title}", note, "" if note else None))))
        parts.append(_markdown(table))
    return "\n".join(parts)


def _markdown(table: Table) -> str:
    rows = ["", "| option | type | default | meaning |", "|---|---|---|---|"]
    for option in table:
        kind = option.shown_type.replace("|", "\\|")
        meaning = option.text.replace("|", "\\|")
        rows.append(f"| `{option.name}` | `{kind}` | `{option.default!r}` | {meaning} |")
    return "\n".join(rows) + "\n"
