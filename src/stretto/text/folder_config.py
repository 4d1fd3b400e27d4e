"""What a Hugging Face folder says of its tokenizer beside the vocabulary.

`tokenizer_config.json` and `special_tokens_map.json` name the special tokens, `generation_config.json` or
`config.json` the ids that end a text; the chat template is in `chat_template.jinja` or in one of the former.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import ModelError
from stretto.weights.json_file import Fields, read_object, read_text

MAX_CONFIG_BYTES = 32 << 20  # some hold a list of all added tokens
MAX_TEMPLATE_BYTES = 1 << 20
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")


@dataclass(frozen=True)
class TokenizerConfig:
    """Special tokens by their role (`bos_token` …), texts of all special tokens, and the chat template."""

    roles: Mapping[str, str] = field(default_factory=dict)
    specials: frozenset[str] = frozenset()
    added: Mapping[str, Any] = field(
        default_factory=dict
    )  # tokens by id, as tokenizer_config.json lists them
    add_bos: bool = False
    add_eos: bool = False
    end_ids: tuple[int, ...] = ()
    template: str = ""
    template_with_tools: str = ""

    def find_id(self, ids: Mapping[str, int], *roles: str) -> int | None:
        """The id of the first of these roles that a token has."""
        return next((ids[self.roles[role]] for role in roles if self.roles.get(role) in ids), None)


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """The configuration of a folder's tokenizer; files that are missing say nothing."""
    config = read_optional(folder / "tokenizer_config.json", MAX_CONFIG_BYTES)
    named = read_optional(folder / "special_tokens_map.json")
    roles: dict[str, str] = {}
    specials: set[str] = set()
    for fields in (named, config):
        for role in ROLES:
            if text := _token_text(fields, role):
                roles[role] = text
        for name in _MORE:
            value = fields.get(name, [])
            values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            specials.update(filter(None, (_text_of(one) for one in values)))
    template, with_tools = read_template(folder, config)
    return TokenizerConfig(
        roles,
        frozenset(specials | set(roles.values())),
        config.object("added_tokens_decoder", {}),
        add_bos=config.get("add_bos_token") is True,
        add_eos=config.get("add_eos_token") is True,
        end_ids=read_end_ids(folder),
        template=template,
        template_with_tools=with_tools,
    )


def read_template(folder: Path, config: Fields) -> tuple[str, str]:
    """The chat template, and the one for conversations with tools; empty texts where there are none."""
    file = folder / "chat_template.jinja"
    tools = folder / "additional_chat_templates" / "tool_use.jinja"
    if file.exists():
        with_tools = read_text(tools, MAX_TEMPLATE_BYTES) if tools.exists() else ""
        return read_text(file, MAX_TEMPLATE_BYTES), with_tools
    value = config.get("chat_template")
    if value is None:
        value = read_optional(folder / "chat_template.json").get("chat_template", "")
    if isinstance(value, list):  # [{"name": "default", "template": "…"}, …]
        pairs = [(one.get("name"), one.get("template")) for one in value if isinstance(one, dict)]
        templates = {name: text for name, text in pairs if isinstance(text, str)}
        return templates.get("default", ""), templates.get("tool_use", "")
    if not isinstance(value, str) or len(value) > MAX_TEMPLATE_BYTES:
        raise config.error("chat_template", f"must be a text of at most {MAX_TEMPLATE_BYTES} characters")
    return value, ""


def read_end_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end a text, from generation_config.json, or else config.json."""
    for name in ("generation_config.json", "config.json"):
        fields = read_optional(folder / name)
        value = fields.get("eos_token_id")
        if value is None:
            continue
        values = value if isinstance(value, list) else [value]
        if len(values) > 64 or not all(type(one) is int for one in values):
            raise fields.error("eos_token_id", "must be a token's id, or a list of at most 64 of them")
        return tuple(one for one in values if one >= 0)  # -1 stands for none in some files
    return ()


def read_optional(path: Path, most: int = 4 << 20) -> Fields:
    """The object in a JSON file that may be missing."""
    return read_object(path, most) if path.exists() else Fields({}, path)


def _token_text(fields: Fields, role: str) -> str:
    value = fields.get(role)
    text = _text_of(value)
    if value is not None and text is None:
        raise ModelError("must be a token's text", path=fields.path, field=role)
    return text or ""


def _text_of(value: Any) -> str | None:
    """The text of a token that is given as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
