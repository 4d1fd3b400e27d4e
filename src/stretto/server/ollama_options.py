"""Ollama's runtime options as those of the engine: honoured, without effect here, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.server.errors import ApiError
from stretto.server.ollama_schemas import Options, RequestOptions
from stretto.server.schema_base import plain_options

# Options that would change the answer, and the values at which they do not.
NEUTRAL: dict[str, tuple[float, ...]] = {
    "mirostat": (0,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "rope_frequency_base": (0,),
    "rope_frequency_scale": (0,),
}


def engine_options(given: Options | None) -> dict[str, Any]:
    """The engine's options; raises for those that would change the answer and are not supported."""
    options: dict[str, Any] = {"n": 1}
    if given is None:
        return options
    _check_neutral(given)
    options.update(plain_options(given))
    if given.repeat_penalty is not None:
        options["repetition_penalty"] = given.repeat_penalty
    if options.get("top_k") == -1:
        options["top_k"] = 0  # all
    if given.repeat_last_n == 0:
        options.pop("repetition_penalty", None)  # it looks at no token
    if given.seed is not None:
        options["seed"] = given.seed % (1 << 64)
    if given.num_predict is not None and given.num_predict >= 0:
        options["max_tokens"] = given.num_predict
    return options


def tell_unknown(given: Options | None, warn: Callable[[str, str], None]) -> None:
    """Tell of options that are not known here: as Ollama does, they are left out."""
    for name in (given.model_extra or {}) if given is not None else ():
        warn(f"options.{name[:60]}", "is no option that is known here; it was left out")


def check_context(given: Options | None, length: int) -> None:
    """Raise if a longer context is asked for than there is."""
    if given is not None and given.num_ctx is not None and given.num_ctx > length:
        raise ApiError(
            400,
            f"options.num_ctx is {given.num_ctx:,}, and the context has {length:,} tokens; start the server "
            "with more --cells, if the model can use them",
            param="options.num_ctx",
        )


def merged(parameters: dict[str, Any], given: Options | None) -> Options | None:
    """The options of a request over the parameters of a made model."""
    if not parameters:
        return given
    own = {} if given is None else given.model_dump(exclude_none=True)  # those that are not known too
    return RequestOptions.model_validate({**parameters, **own})


def _check_neutral(given: Options) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(given, name)
        if value is not None and value not in neutral:
            raise ApiError(
                400,
                f"options.{name} is not supported here; leave it out, or give {neutral[0]}",
                param=f"options.{name}",
                code="unsupported",
            )
    penalty = given.repeat_penalty
    if given.repeat_last_n not in (None, -1, 0) and penalty is not None and penalty != 1:
        raise ApiError(
            400,
            "options.repeat_last_n: the penalty looks at the whole text here; leave it out, or give -1 or 0",
            param="options.repeat_last_n",
            code="unsupported",
        )
