"""The command `audit`: what attacks prove, next to what a study promises."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ...checks import InputError
from ...models.trust import in_run_folder
from ...privacy.mechanisms.noise import SYSTEM, simulated_text
from ...records.files import read_sealed_toml
from ...scores.words import percent
from ..own_modules import read_study_file
from ..progress import plain_progress
from ..tables import print_json
from ..terminal import err, interruptible, out
from .options import Json, Overrides, Quiet, Trust

if TYPE_CHECKING:
    from ...privacy.attacks import NoiseCheck
    from ...study.attacks import AuditFindings, Inversion, Proof

_MEANING = (
    "epsilon at least: proved by the right guesses; could prove: if all guesses were "
    "right; at most: the accountant's bound."
)


@interruptible(err, "nothing was proved.")
def audit(
    path: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A TOML file, or a run folder.")
    ],
    overrides: Overrides = None,
    runs: Annotated[int, typer.Option(help="How often to train each algorithm.")] = 32,
    confidence: Annotated[
        float, typer.Option(help="Confidence that all lower bounds hold together.")
    ] = 0.95,
    trust: Trust = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Attack a study's training: is it as private as its [privacy] says?

    The exit code is 1 if an attack proves more than the accountant allows.
    """
    from ...study.attacks import audit_study  # scipy.stats takes a second

    if path.is_dir():
        path = path / "study.toml"
        if not path.is_file() or not in_run_folder(path):
            raise InputError(
                f"there is no run to audit in {path.parent}: a run folder has "
                "study.toml and read.json."
            )
        read_sealed_toml(path)
    study = read_study_file(path, overrides, trust)
    with plain_progress(err, f"{study.name}, audit", quiet=quiet) as show:
        found = audit_study(study, runs=runs, confidence=confidence, progress=show)
    if as_json:
        print_json(_answer(found, study.name, runs, confidence))
    else:
        _print(found, confidence)
        source = SYSTEM if study.privacy is None else study.privacy.noise_source
        if words := simulated_text(source):
            out.print(words)
    if found.broken:
        raise typer.Exit(1)


def _print(found: AuditFindings, confidence: float) -> None:
    title = f"unit {found.unit}, all bounds together with confidence {confidence:g}"
    table = Table(title=title, caption=_MEANING)
    for column in ("algorithm", "attack"):
        table.add_column(column, overflow="fold")
    for column in ("right\nguesses", "epsilon\nat least", "could\nprove", "at\nmost"):
        table.add_column(column, justify="right")
    table.add_column("verdict", overflow="fold")
    for proof in found.proofs:
        guesses = f"{proof.right}/{proof.guesses}"
        bounds = [f"{proof.lower:.2f}", f"{proof.most:.2f}"]
        promised = "none" if proof.upper == math.inf else f"{proof.upper:.3g}"
        cells = [guesses, *bounds, promised, _verdict(proof)]
        table.add_row(proof.label, proof.attack, *cells)
    out.print(table)
    for label, check in found.checks.items():
        out.print(_noise_text(label, check))
    for one in found.inversions:
        out.print(_inversion_text(one))
    weak = [p for p in found.proofs if p.most < p.upper < math.inf]
    if weak:
        out.print(
            "This number of guesses, even if all were right, could not disprove an "
            f"epsilon of {weak[0].upper:.3g}."
        )


def _verdict(proof: Proof) -> str:
    if proof.broken:
        return "BROKEN"
    return "no promise" if proof.upper == math.inf else "not disproved"


def _noise_text(label: str, check: NoiseCheck) -> str:
    """The measured noise and clipping, in words."""
    text = (
        f"{label}: the noise is {check.measured:.1%} of what is promised"
        f"{': BROKEN' if check.quiet else ''}. This audit would have noticed less than "
        f"{check.noticed:.1%}. "
    )
    if check.unclipped:
        return f"{text}Rows leave unclipped: BROKEN."
    if check.clips_tested:
        return f"{text}Rows are clipped."
    return f"{text}Clipping was not tested, because too few rows were long enough."


def _inversion_text(one: Inversion) -> str:
    """How well a sample can be rebuilt, in words."""
    text = f"{one.label}: a sample rebuilt from a recorded release is off by "
    if one.error is None:
        return f"{text}{_share(one.without)} of its length, and nothing hides it."
    with_noise, without = _share(one.error), _share(one.without)
    return f"{text}{with_noise} of its length, without noise by {without}."


def _share(error: float) -> str:
    return percent(error) if error <= 1 else "more than 100 %"


def _answer(
    found: AuditFindings, study: str, runs: int, confidence: float
) -> dict[str, Any]:
    proofs = [
        {**proof._asdict(), "broken": proof.broken, "verdict": _verdict(proof)}
        for proof in found.proofs
    ]
    return {
        "study": study,
        "unit": found.unit,
        "runs": runs,
        "confidence": confidence,
        "broken": found.broken,
        "proofs": proofs,
        "checks": {
            label: {**check._asdict(), "broken": check.broken}
            for label, check in found.checks.items()
        },
        "inversions": [one._asdict() for one in found.inversions],
    }
