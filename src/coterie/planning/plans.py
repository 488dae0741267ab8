"""The plan of a study: how much learning with others can help each client."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from ..checks import InputError, integer, number
from ..data.federation import full_name, short_name
from ..records import replacing
from ..study import Study, data_of, prepare, simulation_of
from .pilot import run_pilot
from .prospects import (
    Findings,
    Prospects,
    intervals_of,
    prospects_of,
    structure_of,
)

WORTHWHILE = 1.5
"""Collaboration counts as help if it is worth so many times one's own samples."""

_SHOWN = 30
"""So many clients are shown in a notebook; the table has all of them."""

JOIN, ALONE, OPEN = "join", "alone", "cannot tell"


@dataclass(frozen=True)
class Plan:
    """What a pilot promises to the clients of a study."""

    study: Study
    read: dict[str, str]  # digests of what its data were read from
    seed: int
    clients: list[int]
    names: tuple[str, ...]  # of the clients, by identity; () where they have none
    training: dict[str, float]  # how the pilot's common model was trained
    findings: Findings
    prospects: Prospects

    def __repr__(self) -> str:
        counts = self._table["verdict"].value_counts()
        verdicts = ", ".join(f"{name} {count}" for name, count in counts.items())
        return (
            f"<Plan of {self.study.name}, seed {self.seed}: "
            f"{len(self.clients)} clients; {verdicts}>"
        )

    def _repr_html_(self) -> str:
        """What each client is told, for a notebook."""
        table = self._table.to_html(index=False, max_rows=_SHOWN)
        return f"<p>{escape(repr(self))}</p>{table}"

    def table(self) -> pd.DataFrame:
        """A row for each client: gain with its interval, partners, samples, verdict.

        `alone` and `together` are the samples of each client with which training alone
        and learning with the others are equally precise.
        """
        return self._table.copy()

    @functools.cached_property
    def _table(self) -> pd.DataFrame:
        likely, least, most, _ = self.prospects
        sizes, answers = self.findings.sizes, self._answers()
        rows: list[dict[str, Any]] = []
        for i, client in enumerate(self.clients):
            low, high = sorted((least.gain[i], most.gain[i]))
            ends = sorted((least.share[i], most.share[i]))
            rows.append(
                {
                    "client": client,
                    "name": full_name(self.names, client),
                    "verdict": verdict(low, high),
                    "noise": self.findings.variance[i],
                    "gain": likely.gain[i],
                    "gain_least": min(low, likely.gain[i]),
                    "gain_most": max(high, likely.gain[i]),
                    "alone": int(sizes[i]),
                    "together": math.ceil(likely.share[i] * sizes[i]),
                    "together_least": math.ceil(ends[0] * sizes[i]),
                    "together_most": math.ceil(ends[1] * sizes[i]),
                    "pilot_for_an_answer": answers[i],
                    "partners": ", ".join(
                        short_name(self.names, self.clients[j])
                        for j in _partners(likely.weights[i], i)
                    ),
                }
            )
        return pd.DataFrame(rows)

    def _answers(self) -> Float[np.ndarray, " n"]:
        """How many times the pilot's samples would tell, if they say the same.

        1 where the pilot tells, infinite where even 20 times as many would not.
        """
        answer = np.full(len(self.clients), np.inf)
        for times in (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0):
            found = self.findings._replace(floor=self.findings.floor / times)
            for i, (low, high) in enumerate(zip(*intervals_of(found), strict=True)):
                if verdict(low, high) != OPEN:
                    answer[i] = min(answer[i], times)
            if np.isfinite(answer).all():
                break
        return answer

    def summary(self) -> list[str]:
        """What to tell people, in a few sentences."""
        low, likely, high = self.prospects.mean
        table = self.table()
        counts = table["verdict"].value_counts()
        lines = [
            f"On average, learning together is worth {likely:.2g} times a client's own "
            f"samples (90 % interval {min(low, likely):.2g} to {max(high, likely):.2g})"
            f"{_cannot_tell(low, high)}."
        ]
        texts = {
            JOIN: f"very likely (95 %) a gain of {WORTHWHILE:g} or more",
            ALONE: f"very likely (95 %) less than {WORTHWHILE:g}, whoever the partners",
            OPEN: "open, the pilot has too few samples of them to tell",
        }
        lines += [
            f"{counts[name]} of {len(table)} clients: {text}."
            for name, text in texts.items()
            if name in counts
        ]
        shape = structure_of(self.findings)
        directions = shape.place.shape[1]
        noise = float((self.findings.variance / self.findings.sizes).mean())
        lines.append(
            f"Clients differ in {directions or 'no'} "
            f"direction{'s' * (directions != 1)} more than noise would; beyond that, "
            f"each by {float(shape.own.mean()) / noise:.2g} of its samples' noise "
            f"(± {shape.own_error / noise:.2g})."
        )
        return lines

    def write(self, folder: Path) -> None:
        """Writes plan.csv, weights.csv (for `weights` in a study) and plan.html."""
        from .pages import plan_page

        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / "plan.csv") as path:
                self.table().to_csv(path, index=False)
            with replacing(folder / "weights.csv") as path:
                np.savetxt(path, self.prospects.likely.weights, "%.6g", delimiter=",")
            with replacing(folder / "plan.html") as path:
                path.write_text(plan_page(self), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"the folder {folder} cannot be written: {error.strerror}."
            ) from error


def verdict(least: float, most: float) -> str:
    """Whether a client should join, given the ends of its gain.

    >>> verdict(2.0, 9.0), verdict(1.0, 1.2), verdict(1.1, 9.0)
    ('join', 'alone', 'cannot tell')
    """
    if least >= WORTHWHILE:
        return JOIN
    return ALONE if most < WORTHWHILE else OPEN


def _cannot_tell(low: float, high: float) -> str:
    return ": the pilot cannot tell" if verdict(low, high) == OPEN else ""


def _partners(row: np.ndarray, i: int) -> list[int]:
    """Whom client i should learn with, the most helpful first.

    Those whose weight is a tenth of the largest or more.
    """
    order = np.argsort(-row, kind="stable")
    return [int(j) for j in order if j != i and row[j] >= row.max() / 10]


def plan_study(
    study: Study,
    *,
    seed: int | None = None,
    lr: float | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    samples: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Plan:
    """What learning with others would bring to each client of a study.

    Only training data are used.

    Args:
        study: its data, split, model and run; of its algorithms only the step size.
        seed: which of the study's federations; None takes the first.
        lr: step size of the pilot's common model; None takes that of the study's
            fedavg, or of its first algorithm that has one.
        steps: local steps in a round of its training; None takes them from there too.
        rounds: of its training; None takes the study's.
        samples: plan for so many training samples of every client; 0 for those that
            they have.
        progress: called with the rounds that are done and their number.
    """
    seed = study.run.seeds[0] if seed is None else integer("seed", seed, at_least=0)
    usual = _steps_of(study)
    lr = number("lr", usual[0] if lr is None else lr, above=0)
    steps = integer("steps", usual[1] if steps is None else steps, at_least=1)
    rounds = study.run.rounds if rounds is None else rounds
    integer("rounds", rounds, at_least=1)
    integer("samples", samples, at_least=0)
    asked = replace(study, run=replace(study.run, newcomers=0, seeds=(seed,)))
    data = data_of(asked)
    setup = prepare(asked, seed, data.federations[seed])
    findings = run_pilot(
        setup.federation,
        lambda part: simulation_of(study, part, setup.module, seed),
        setup.x[0],
        lr=lr,
        rounds=rounds,
        steps=steps,
        seed=seed,
        tick=_counted(progress, 2 * rounds),
    )
    if samples:
        findings = findings._replace(sizes=np.full(len(findings.sizes), float(samples)))
    return Plan(
        study,
        data.read,
        seed,
        setup.federation.clients.tolist(),
        setup.federation.names,
        {"lr": lr, "steps": steps, "rounds": rounds},
        findings,
        prospects_of(findings),
    )


def _counted(progress: Callable[[int, int], None], rounds: int) -> Callable[[], None]:
    """Counts rounds, of which there may be several times as many."""
    done = itertools.count(1)

    def tick() -> None:
        now = next(done)
        progress(now, -(-now // rounds) * rounds)

    return tick


def _steps_of(study: Study) -> tuple[float, int]:
    """Step size and steps of the study's fedavg, or of the first that has a size."""
    order = sorted(study.algorithms, key=lambda entry: entry.name != "fedavg")
    for entry in order:
        lr, steps = entry.options.get("lr"), entry.options.get("steps", 1)
        if isinstance(lr, float | int) and isinstance(steps, int):
            return float(lr), steps
    return 0.1, 1
