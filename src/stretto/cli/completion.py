"""What a shell offers for a model: names that are here, then those that can be pulled."""

from __future__ import annotations

from stretto.errors import StrettoError


def model_names(incomplete: str) -> list[str]:
    """Names of models and aliases that begin so; files are the shell's own to complete.

    >>> model_names("smollm2")
    ['smollm2', 'smollm2-1.7b']
    """
    from stretto.weights import hub
    from stretto.weights.hub.catalogue import CATALOGUE

    try:
        here = [model.name for model in hub.models()]
    except StrettoError:  # a completion has nowhere to say what is wrong with the store
        here = []
    names = dict.fromkeys((*aliases(), *here, *sorted((*hub.known(), *CATALOGUE))))
    return [name for name in names if name.startswith(incomplete)]


def aliases() -> list[str]:
    """The user's own names for models; none where the configuration file is broken."""
    from stretto.cli import config_file

    try:
        return sorted(config_file.read().aliases)
    except StrettoError:
        return []


def setting_names(incomplete: str) -> list[str]:
    """Keys of the configuration file that begin so.

    >>> setting_names("th")
    ['threads']
    """
    from stretto.cli.config_file import SETTINGS

    return [key for key in (*SETTINGS, "alias.") if key.startswith(incomplete)]
