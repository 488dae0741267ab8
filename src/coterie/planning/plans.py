"""The plan of a study: how much learning with others would help each client."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from ..checks import InputError, integer, number, several
from ..clients.samples import batches_of
from ..clients.simulation import Simulation
from ..data.federation import Federation, full_name, short_name
from ..models import Objective
from ..models.losses import squared_error
from ..models.measures import measure_words
from ..records import replacing
from ..records.sheets import write_csv
from ..scores.words import figure
from ..study import Setup, Study, data_of, prepare, simulation_of
from ..study.config import trained_options
from .expectations import WORTHWHILE, Outlook, outlook_of
from .pilot import Pilot, PilotTraining, large_enough, run_pilot
from .prospects import PilotFindings, Prospects, prospects_of
from .trials import SHARE, Trial, run_trial

JOIN, ALONE, OPEN, UNKNOWN = "join", "do not join", "collect first", "cannot tell"

_SHOWN = 30
"""Number of clients shown in a notebook; the table has all of them."""

Row = Mapping[Any, Any] | pd.Series
"""A row of a plan's table."""

_USUAL_LR = 0.1
_USUAL_STEPS = 5
"""Largest step size and steps of a pilot, if the study gives no step size."""

_MOST_TIMES = 10
"""The plan proposes a pilot with at most this multiple of the samples."""


@dataclass(frozen=True)
class Plan:
    """The advice to the clients of a study, from a pilot and a trial."""

    study: Study
    read: dict[str, str]  # digests of the files that its data were read from
    seed: int
    clients: list[int]
    names: tuple[str, ...]  # of the clients, by identity; () if they have none
    training: dict[str, float]  # settings with which models were trained
    measure: ShownMeasure
    samples: Float[np.ndarray, " n"]  # that are planned for
    findings: PilotFindings
    outlook: Outlook
    weights: Float[np.ndarray, "n n"]  # how clients should weight each other
    everybody: int  # number of clients of the study, with those left out here
    left_out: tuple[str, ...] = ()  # clients with too few samples, and how many

    def __repr__(self) -> str:
        counts = self._table["verdict"].value_counts()
        verdicts = ", ".join(f"{name} {count}" for name, count in counts.items())
        return (
            f"<Plan of {self.study.name}, seed {self.seed}: "
            f"{several(len(self.clients), 'client')}; {verdicts}>"
        )

    def _repr_html_(self) -> str:
        """The table of clients, for a notebook."""
        table = self._table.to_html(index=False, max_rows=_SHOWN)
        return f"<p>{escape(repr(self))}</p>{table}"

    def table(self) -> pd.DataFrame:
        """One row per client: verdict, scores and worth with intervals, partners."""
        return self._table.copy()

    @functools.cached_property
    def _table(self) -> pd.DataFrame:
        rows = [self._row(i) for i in range(len(self.clients))]
        return pd.DataFrame(rows)

    def _row(self, i: int) -> dict[str, Any]:
        """The row of client i."""
        low, _, high = self.outlook.worth[:, i]
        told, times = verdict(low, high), float(self.outlook.times[i])
        if told == OPEN and times > _MOST_TIMES:
            told = UNKNOWN
        collect = math.ceil(times * self.findings.sizes[i])
        partners = _partners(self.weights[i], i)
        scores = self._scores(i)
        if not partners:  # then joining is worth nothing
            scores |= dict.fromkeys(("worth", "worth_least", "worth_most"), math.nan)
            ends = ("", "_least", "_most")
            scores |= {f"together{end}": scores[f"alone{end}"] for end in ends}
        return {
            "client": self.clients[i],
            "name": full_name(self.names, self.clients[i]),
            "verdict": told,
            "collect": collect if told == OPEN else 0,
            "sure": how_sure(told, float(self.outlook.chance[i])),
            "partners": ", ".join(
                short_name(self.names, self.clients[j]) for j in partners
            ),
            **scores,
            "samples": int(self.samples[i]),
        }

    def _scores(self, i: int) -> dict[str, float]:
        """Scores and worth of client i with their intervals; i = -1 is the mean."""
        found: dict[str, float] = {}
        for name in ("alone", "together", "worth"):
            ends = getattr(self.outlook, name)[:, i]
            least, value, most = (
                ends if name == "worth" else self.measure.to_display(ends)
            )
            found |= {name: value, f"{name}_least": least, f"{name}_most": most}
        return found

    @property
    def verdict(self) -> str:
        """The verdict for all clients together."""
        return verdict(*self.outlook.worth[::2, -1])

    def summary(self) -> list[str]:
        """The plan in a few sentences, the verdict for all clients first."""
        lines = [f"{self._for_all()} {self._for_all_in_numbers()}"]
        counts = self.table()["verdict"].value_counts()
        much = f"{WORTHWHILE:g} times their own samples"
        texts = {
            JOIN: f"join. It is very likely (95 %) worth {much} or more",
            ALONE: f"do not join. It is very likely (95 %) worth less than {much}",
            OPEN: "collect first. The number of samples in the table would decide it",
            UNKNOWN: "cannot tell. Ten times the samples would not decide it either",
        }
        lines += [
            f"{counts[name]} of {len(self.clients)} clients: {text}."
            for name, text in texts.items()
            if name in counts
        ]
        if self.left_out:
            lines.append(f"Left out as too small: {', '.join(self.left_out)}.")
        return lines

    def _for_all_in_numbers(self) -> str:
        """Mean scores, and what joining is worth if any client has partners."""
        row, title = self._scores(-1), self.measure.title
        alone, both = (self.measure.interval_of(row, n) for n in ("alone", "together"))
        if not self.table()["partners"].any():
            return (
                f"Mean {title}: {alone} alone (90 % interval). No client has partners, "
                "because none was clearly better with others in the trial."
            )
        low, likely, high = self.outlook.worth[:, -1]
        return (
            f"Mean {title}: {alone} alone, {both} with the suggested partners. Joining "
            f"is worth {likely:.2g} times a client's own samples ({low:.2g} to "
            f"{high:.2g}; all intervals are of 90 %)."
        )

    def _for_all(self) -> str:
        times = float(self.outlook.times[-1])
        sure = how_sure(self.verdict, float(self.outlook.chance[-1]))
        if self.verdict == JOIN:
            return f"Join: {sure}."
        if self.verdict == ALONE:
            return f"Do not join: {sure}."
        if times > _MOST_TIMES:
            return (
                f"The pilot cannot tell ({sure}). A pilot with {_MOST_TIMES} times the "
                "samples could not tell either."
            )
        least, most = (
            math.ceil(times * end(self.findings.sizes)) for end in (np.min, np.max)
        )
        if least == most:
            return f"Collect about {least:,} samples of each client first: {sure}."
        many = f"{times:.2g} times the samples"
        return f"Collect about {many} first ({least:,} to {most:,} a client): {sure}."

    def write(self, folder: Path) -> None:
        """Writes plan.csv, weights.csv (for `weights` in a study) and plan.html."""
        from .pages import plan_page

        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / "plan.csv") as path:
                write_csv(self.table(), path)
            with replacing(folder / "weights.csv") as path:
                np.savetxt(path, self._weights_of_all(), "%.6g", delimiter=",")
            with replacing(folder / "plan.html") as path:
                path.write_text(plan_page(self), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"the folder {folder} cannot be written: {error.strerror}."
            ) from error

    def _weights_of_all(self) -> Float[np.ndarray, "e e"]:
        """The weights of all clients of the study. Clients left out learn alone."""
        found = np.eye(self.everybody)
        found[np.ix_(self.clients, self.clients)] = self.weights
        return found


class ShownMeasure(NamedTuple):
    """How the costs of a trial are shown as scores, in the usual units."""

    name: str
    higher_is_better: bool
    share: bool  # whether it is between 0 and 1, shown in percent
    squared: bool  # whether it is a mean square, shown as its root

    def to_display(self, ends: Float[np.ndarray, " 3"]) -> tuple[float, float, float]:
        """Low end, value and high end of the measure itself."""
        values = -ends[::-1] if self.higher_is_better else ends
        if self.share:
            values = np.clip(values, 0, 1)
        if self.squared:
            values = np.sqrt(np.maximum(values, 0))
        return float(values[0]), float(values[1]), float(values[2])

    @property
    def title(self) -> str:
        """Its name, with its unit if it has one."""
        return f"{self.name} (%)" if self.share else self.name

    def interval_of(self, row: Row, name: str) -> str:
        """A value and its interval from a row of the plan, in that unit."""
        value, least, most = (
            f"{100 * row[key]:.1f}" if self.share else figure(row[key], 3)
            for key in (name, f"{name}_least", f"{name}_most")
        )
        return f"{value} ({least} to {most})"


def measure_of(
    objective: Objective, trial: dict[str, Trial]
) -> tuple[ShownMeasure, Trial]:
    """The measure that people decide by, and the trial in this measure as costs.

    If the score is undefined on some quarter (with one class only), the loss replaces
    it.
    """
    name = objective.score
    if name == "rmse" and objective.loss is squared_error:
        name = "loss"  # the mean square, which can be averaged
    if not all(np.isfinite(values).all() for values in trial[name]):
        name = "loss"
    higher = objective.higher_is_better and name != "loss"
    squared = name == "loss" and objective.loss is squared_error
    values = trial[name]
    share = name in ("accuracy", "auc", "dice")
    cost = Trial(*(-one for one in values)) if higher else values
    return ShownMeasure("RMSE" if squared else name, higher, share, squared), cost


def verdict(least: float, most: float) -> str:
    """Whether a client should join, given the interval of its worth.

    >>> verdict(1.8, 4.0), verdict(0.8, 1.1), verdict(1.1, 9.0)
    ('join', 'do not join', 'collect first')
    """
    if least >= WORTHWHILE:
        return JOIN
    return ALONE if most < WORTHWHILE else OPEN


def advice(row: Row) -> str:
    """The verdict of a row. If more samples help, it has the number to collect.

    >>> advice({"verdict": "collect first", "collect": 120})
    'collect 120'
    """
    return f"collect {row['collect']:,}" if row["verdict"] == OPEN else row["verdict"]


def worth_of(row: Row, *, interval: bool = False) -> str:
    """What joining is worth to a client, "-" if it has no partners.

    >>> worth_of({"worth": 2.34}), worth_of({"worth": float("nan")})
    ('2.3', '-')
    """
    if math.isnan(row["worth"]):
        return "-"
    ends = f" ({row['worth_least']:.2g} to {row['worth_most']:.2g})" if interval else ""
    return f"{row['worth']:.2g}{ends}"


def how_sure(told: str, chance: float) -> str:
    """How sure the verdict is, given the probability that joining is worthwhile.

    >>> how_sure("join", 0.99), how_sure("collect first", 0.85)
    ('very likely worth it', 'likely worth it')
    """
    if told == JOIN:
        return "very likely worth it"
    if told == ALONE:
        return "very likely not worth it"
    if 0.2 < chance < 0.8:
        return "it may go either way"
    return "likely worth it" if chance >= 0.8 else "likely not worth it"


def _partners(row: np.ndarray, i: int) -> list[int]:
    """The clients with at least a tenth of the row's largest weight, largest first."""
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
    """How much each client of a study would gain by learning with others.

    It uses training data only.

    Args:
        study: its data, split, model and run, and the step size of its algorithms.
        seed: the seed of the study to plan for; None takes the first.
        lr: step size of the pilot's common model. None takes the step size of the
            study's fedavg. If there is none, it takes the step size of the first
            algorithm that has one. Otherwise it takes 1 over the largest curvature of
            any client (at most 0.1).
        steps: local steps per round of the pilot. None takes the steps of the algorithm
            that gives `lr`. For `epochs`, it takes the mean number of steps of clients.
        rounds: the number of rounds of the pilot; None takes the study's.
        samples: number of training samples per client to plan for; 0 takes the number
            that each client has.
        progress: a function of the number of finished rounds, and of all rounds.
    """
    seed = study.run.seeds[0] if seed is None else integer("seed", seed, at_least=0)
    lr, steps, rounds, epochs = _training_of(study, lr, steps, rounds)
    integer("samples", samples, at_least=0)
    asked = replace(study, run=replace(study.run, newcomers=0, seeds=(seed,)))
    data = data_of(asked)
    everybody = data.federations[seed]
    large, left_out = large_enough(everybody)
    setup = prepare(asked, seed, everybody.select(large) if left_out else everybody)
    lr = _safe_lr(setup) if lr is None else lr
    steps = _steps_in(setup, epochs) if steps is None else steps
    tick = _round_counter(progress, 16 * rounds)
    train = PilotTraining(setup.x[0], lr, steps, rounds, seed, tick)
    pilot, trial = _run_pilot_and_trial(setup, train)
    sizes = pilot.findings.sizes
    measure, cost = _measure_with_class(setup, trial)
    planned = np.full(len(sizes), float(samples)) if samples else sizes
    then = prospects_of(pilot.findings._replace(sizes=planned))
    now = prospects_in_trial(pilot.findings)
    outlook = outlook_of(cost, trial["loss"], sizes, planned, now, then)
    return Plan(
        study,
        data.read,
        seed,
        setup.federation.clients.tolist(),
        setup.federation.names,
        {"lr": lr, "steps": steps, "rounds": rounds},
        measure,
        planned,
        pilot.findings,
        outlook,
        np.where(
            _clients_to_join(outlook)[:, None], then.likely.weights, np.eye(len(sizes))
        ),
        len(everybody),
        (*everybody.left_out, *left_out),
    )


def _measure_with_class(
    setup: Setup, trial: dict[str, Trial]
) -> tuple[ShownMeasure, Trial]:
    """The measure of a study, with the class that it is about in its name."""
    measure, cost = measure_of(setup.simulation.objective, trial)
    of = setup.federation
    name = measure_words(measure.name, of.task, of.classes)
    return measure._replace(name=name), cost


def _safe_lr(setup: Setup) -> float:
    """A step size at which no client overshoots at the start."""
    setup.simulation.measure(setup.x)
    measured = setup.simulation.samples.measurements
    assert measured is not None
    return min(_USUAL_LR, 1 / float(measured.curvature.max()))


def _clients_to_join(outlook: Outlook) -> Bool[np.ndarray, " n"]:
    """(N,) which clients were better together in the trial and may find it worthwhile.

    All others learn alone.
    """
    return outlook.helped & (outlook.worth[2, :-1] >= WORTHWHILE)


def _run_pilot_and_trial(
    setup: Setup, train: PilotTraining
) -> tuple[Pilot, dict[str, Trial]]:
    """A pilot, and a trial of the weights from its halves."""

    def simulate(part: Federation) -> Simulation:
        clients = simulation_of(setup.study, part, setup.module, setup.seed)
        clients.kernel = setup.simulation.kernel  # it may be compiled already
        return clients

    pilot = run_pilot(setup.federation, simulate, train)
    first, second = (prospects_in_trial(half).likely.weights for half in pilot.halves)
    return pilot, run_trial(setup.federation, simulate, (first, second), train)


def prospects_in_trial(found: PilotFindings) -> Prospects:
    """The prospects with the number of samples of a trial."""
    return prospects_of(found._replace(sizes=SHARE * found.sizes))


def _round_counter(
    progress: Callable[[int, int], None], rounds: int
) -> Callable[[], None]:
    """A function that counts rounds. The total grows if groups take more passes."""
    done = itertools.count(1)

    def tick() -> None:
        now = next(done)
        progress(now, -(-now // rounds) * rounds)

    return tick


def _training_of(
    study: Study, lr: float | None, steps: int | None, rounds: int | None
) -> tuple[float | None, int | None, int, int]:
    """Step size, steps, rounds and epochs, from the study where they are None.

    The step size stays None if the study has none either. The steps stay None if the
    study has epochs.
    """
    usual = _steps_of(study)
    lr = usual[0] if lr is None else lr
    steps = (None if usual[2] else usual[1]) if steps is None else steps
    return (
        None if lr is None else number("lr", lr, above=0),
        None if steps is None else integer("steps", steps, at_least=1),
        integer("rounds", study.run.rounds if rounds is None else rounds, at_least=1),
        usual[2],
    )


def _steps_of(study: Study) -> tuple[float | None, int, int]:
    """Step size, steps and epochs (0: none) of the algorithm that a pilot follows.

    It is fedavg, or the first algorithm with a step size.
    """
    order = sorted(study.algorithms, key=lambda entry: entry.name != "fedavg")
    for entry in order:
        lr, steps = trained_options(entry).get("lr"), entry.options.get("steps", 1)
        if isinstance(lr, float | int) and isinstance(steps, int):
            return float(lr), steps, entry.options.get("epochs", 0)
    return None, _USUAL_STEPS, 0


def _steps_in(setup: Setup, epochs: int) -> int:
    """The mean number of steps that clients of a study take in these epochs."""
    sizes = setup.federation.train.size
    batches = batches_of(sizes, setup.study.run.batch_size).double()
    return round(epochs * float(batches.mean()))
