"""The settings of a PEFT adapter; those that would change the result and are not supported are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stretto.weights.json_file import Fields, read_object

PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]+")
# Settings that must be as they are by default.
REFUSED = {
    "use_dora": "DoRA, which scales columns too,",
    "fan_in_fan_out": "a matrix stored the other way round",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "an activated LoRA, which changes a text from some tokens on only,",
    "layer_replication": "a model whose layers are repeated",
    "arrow_config": "a mixture of adapters",
    "lora_bias": "a bias of the narrow matrices",
    "trainable_token_indices": "embeddings of single tokens",
    "target_parameters": "parameters that are no modules",
}


@dataclass(frozen=True)
class PeftConfig:
    """What scales the changes: alpha / r, or with `rooted` alpha / √r."""

    alpha: float
    alphas: dict[str, float]  # of modules by the end of their names
    rooted: bool

    @classmethod
    def read(cls, path: Path) -> PeftConfig:
        """Read adapter_config.json."""
        config = read_object(path)
        kind = config.text("peft_type", "")
        if kind.upper() != "LORA":
            raise config.error("peft_type", f"adapters of type {kind!r} are not supported, only LORA")
        for name, what in REFUSED.items():
            if config.get(name):
                raise config.error(name, f"{what} is not supported")
        if config.get("bias", "none") != "none":
            raise config.error("bias", "biases are not supported, only 'none'")
        config.integer("r", least=1)
        return cls(config.number("lora_alpha"), _alphas(config), config.flag("use_rslora", False))

    def scale(self, module: str, rank: int) -> float:
        """The factor of a module's change."""
        ends = (name for name in self.alphas if module == name or module.endswith(f".{name}"))
        alpha = self.alphas.get(next(ends, ""), self.alpha)
        return alpha / (rank**0.5 if self.rooted else rank)


def _alphas(config: Fields) -> dict[str, float]:
    pattern = config.object("alpha_pattern", {})
    for name in pattern:
        if not PLAIN_NAME.fullmatch(name):
            raise config.error(
                "alpha_pattern", f"{name!r:.80}: only ends of names are supported, no patterns"
            )
    return {name: pattern.number(name) for name in pattern}
