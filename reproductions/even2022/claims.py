"""How claims are made: of a reference that is one run, and of statements."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.cli import Claim

EXPECTED = tomllib.loads((Path(__file__).parent / "expected.toml").read_text())


def near(what: str, reference: float, runs: Tensor, *, factor: float = 1.0) -> Claim:
    """Whether a reference, itself one run, can be one of ours.

    It may be three standard deviations of a difference to our mean away, half a unit
    of its second digit, which is at most 5 percent, and the factor.
    """
    mean = float(runs.mean())
    if runs.numel() == 1:
        note = "a single run says nothing of its deviation"
        return Claim(what, f"{reference:.3g}", f"{mean:.3g}", None, note)
    deviation = float(runs.std())
    slack = 3 * deviation * math.sqrt(1 + 1 / runs.numel()) + 0.05 * reference
    agrees = (mean - slack) / factor <= reference <= (mean + slack) * factor
    note = f"one run ±{deviation:.2g}"
    note += f", a factor {factor:g} allowed" if factor > 1 else ""
    return Claim(what, f"{reference:.3g}", f"{mean:.3g}", agrees, note)


def states(
    what: str, ours: str, holds: Any, note: str = "", *, expected: str = "yes"
) -> Claim:
    """A statement that should hold."""
    return Claim(what, expected, ours, bool(holds), note)


def published(what: str, ours: str, holds: Any, note: str) -> Claim:
    """A statement of the text that is known not to reproduce: shown, not judged."""
    return Claim(what, "yes", ours, None, f"{'holds' if holds else 'FAILS'}: {note}")


def folder_of(item: str) -> Path:
    """The folder for the pictures of an item."""
    folder = Path("runs") / f"even2022-{item}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
