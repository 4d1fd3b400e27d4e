"""The metadata of mixtures of experts, which the architectures share."""

from __future__ import annotations

from typing import Any, Literal

from stretto.errors import ModelError
from stretto.models.common import MAX_EXPERTS, Keys
from stretto.models.spec import Dense, Experts, Routing

Weights = Literal["softmax", "sigmoid", "chosen"]
GATING: dict[int, Weights] = {1: "softmax", 2: "sigmoid", 3: "chosen"}  # codes of expert_gating_func


def mixture(keys: Keys, choice: Routing | None = None, **pieces: Any) -> Experts:
    """The experts that the usual keys describe; `pieces` are the fields that differ."""
    fields: dict[str, Any] = {
        "n_expert": keys.size("expert_count", most=MAX_EXPERTS),
        "n_ff": expert_width(keys),
        "routing": choice or routing(keys),
    }
    return Experts(**(fields | pieces))


def expert_width(keys: Keys) -> int:
    """The width of an expert: as given, or its share of the whole feed-forward's."""
    if f"{keys.arch}.expert_feed_forward_length" in keys.file.metadata:
        return keys.size("expert_feed_forward_length")
    return keys.size("feed_forward_length") // keys.size("expert_used_count", most=MAX_EXPERTS) or 1


def routing(keys: Keys, weights: Weights = "softmax", **pieces: Any) -> Routing:
    """The choice of experts that the usual keys describe; `pieces` are the fields that differ."""
    n_expert = keys.size("expert_count", most=MAX_EXPERTS)
    n_used = keys.size("expert_used_count", most=n_expert)
    n_group = keys.count("expert_group_count", 1, most=n_expert) or 1
    n_group_used = keys.count("expert_group_used_count", 1, most=n_group) or 1
    if n_expert % n_group or n_used > n_group_used * (n_expert // n_group):
        raise ModelError(
            f"{n_used} of {n_expert} experts cannot be taken from {n_group_used} of {n_group} equal groups",
            path=keys.file.path,
            field=f"{keys.arch}.expert_group_count",
        )
    fields: dict[str, Any] = {
        "n_used": n_used,
        "weights": weights,
        # Files that say nothing of a scale, or 0, have none.
        "scale": keys.number("expert_weights_scale", 1.0, 0.0, 1e6) or 1.0,
        "n_group": n_group,
        "n_group_used": n_group_used,
        "group_best": min(2, n_expert // n_group),
    }
    return Routing(**(fields | pieces))


def gating(keys: Keys, default: Weights) -> Weights:
    """How scores become weights, by the code in the file."""
    code = keys.count("expert_gating_func")
    if code and code not in GATING:
        raise ModelError(
            f"{code}, but 1 (softmax), 2 (sigmoid) and 3 (softmax of the chosen) are supported",
            path=keys.file.path,
            field=f"{keys.arch}.expert_gating_func",
        )
    return GATING.get(code, default)


def shared_expert(n_ff: int) -> Dense | None:
    """An expert that every token has; none of width 0."""
    return Dense(n_ff, suffix="_shexp") if n_ff else None


def shared_experts(keys: Keys) -> Dense | None:
    """So many experts that every token has, side by side as one."""
    return shared_expert(keys.count("expert_shared_count", most=MAX_EXPERTS) * expert_width(keys))


def dense_first(keys: Keys) -> int:
    """How many layers at the start have a dense feed-forward."""
    return keys.count("leading_dense_block_count", most=keys.n_layer)
