"""Tiny models with recurrent layers."""

from __future__ import annotations

from tiny import convolutions, delta_nets, mambas
from tiny.base import Case

CASES: dict[str, Case] = delta_nets.CASES | convolutions.CASES | mambas.CASES
