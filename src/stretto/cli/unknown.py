"""Options that other programs have: the error says what they are called here."""

from __future__ import annotations

from stretto.options.other_names import OURS

ON_A_GPU = ("n_gpu_layers", "num_gpu", "gpu_layers", "device_map")


def renamed(error: Exception) -> str:
    """What an unknown option is called here, as the end of a message; "" if there is nothing like it.

    `error` is the parser's: of no other kind do exceptions have an option's name and a context.
    """
    given, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not isinstance(given, str) or context is None:
        return ""
    options = {one.name: one.opts[0] for one in context.command.params if one.opts[0].startswith("-")}
    name = given.lstrip("-").replace("-", "_")
    if name in ON_A_GPU and "device" in options:
        return "; --device cuda runs the whole model on a GPU"
    ours = options.get(OURS.get(name, ""))
    return f"; it is {ours} here" if ours else ""
