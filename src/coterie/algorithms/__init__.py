"""The methods by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from ..types import Algorithm
from .adaptive_all_for_one import adaptive_all_for_one
from .all_for_one import all_for_one
from .fedavg import fedavg
from .fedavg_finetune import fedavg_finetune
from .local import local

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "adaptive_all_for_one": adaptive_all_for_one,
    "all_for_one": all_for_one,
    "fedavg": fedavg,
    "fedavg_finetune": fedavg_finetune,
    "local": local,
}
