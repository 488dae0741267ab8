"""Settings chosen on validation data, with the same budget for every algorithm.

    draw settings; train each for a few rounds; the best third trains on for three times
    as long; and so on; the best at the end is chosen

Draws from ranges depend on the seed and the option alone. So all methods try the same
step sizes, and no method is luckier with them than another. The next step of a search
follows from its results so far. So a search that was stopped goes on where it was. Test
data are never used.

References:
    Bergstra, Bengio, "Random search for hyper-parameter optimization", JMLR 2012.
    Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter
    optimization", AISTATS 2016, arXiv 1502.07943 (successive halving).

Differences:
    Halving never leaves a single setting to train on, because this would decide
    nothing.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import checks, seeds
from ..checks import InputError, TrainingError, integer, number, one_of
from ..data.federation import Federation, part
from ..data.parts import ranks, streams
from ..records import COLUMNS, Options, Rung, Search, Step
from .settings.optimisers import flat_space
from .tables import refuse_bad_options

OWN: dict[str, dict[str, Any]] = {
    "adaptive_all_for_one": {"lam": {"from": 0.03, "to": 0.5}},
    "apfl": {"alpha": {"from": 0.1, "to": 0.9, "scale": "linear"}},
    "aruba": {"zeta": {"from": 0.01, "to": 10.0}},
    "cobo": {"rho": {"from": 0.005, "to": 0.5}},
    "ditto": {"lam": {"from": 0.01, "to": 10.0}},
    "fedavg_finetune": {"tune_lr": {"from": 0.01, "to": 1.0}},
    "ifca": {"clusters": [2, 3, 4]},
    "karula": {"t": {"from": 0.01, "to": 100.0}},
    "per_fedavg": {"alpha": {"from": 0.001, "to": 0.3}},
    "pfedme": {
        "lam": {"from": 0.1, "to": 10.0},
        "inner_lr": {"from": 0.01, "to": 0.3},
    },
    "wga_bc": {"alpha": {"from": 0.1, "to": 0.9, "scale": "linear"}},
}
"""What is searched besides the step size if a study names no space, by method."""

_DRAWN = 16
"""The most draws for each trial, because draws that repeat a setting do not count."""


@dataclass(frozen=True)
class Tune:
    """The table [tune]: how settings are searched, the same way for all algorithms."""

    trials: int = 8  # settings tried for every algorithm and seed
    search: str = "random"  # or grid
    halving: int = 3  # a share 1 / halving goes on; 1 trains all settings to the end
    folds: int = 0  # of train and validation together; 0 takes the validation part
    rounds: int = 0  # of a trial that goes to the end; 0 takes those of the run
    space: dict[str, Any] = field(default_factory=dict)  # of all algorithms, by option

    def __post_init__(self) -> None:
        integer("tune.trials", self.trials, at_least=1, at_most=10_000)
        one_of("tune.search", self.search, ("random", "grid"))
        integer("tune.halving", self.halving, at_least=1)
        integer("tune.folds", self.folds, at_least=0)
        if self.folds == 1:
            raise InputError("`tune.folds` must be 0 or at least 2, got 1.")
        integer("tune.rounds", self.rounds, at_least=0)


def tune_of(table: Mapping[str, Any]) -> Tune:
    """The table [tune], checked except for the values in its space."""
    refuse_bad_options("tune", table, Tune)
    if not isinstance(table.get("space", {}), dict):
        raise InputError(f"[tune.space] must be a table, got {table['space']!r}.")
    return Tune(**{**table, "space": flat_space(table.get("space", {}))})


def space_of(
    tune: Tune,
    own: Mapping[str, Any],
    written: Mapping[str, Any],
    known: Mapping[str, inspect.Parameter],
    name: str,
) -> dict[str, Any]:
    """The checked search space of one algorithm: lists of values and ranges, by option.

    The algorithm's own ranges replace shared ranges. Shared ranges count only for
    `known` options. Without shared ranges, the step size is searched around the value
    in the study. A random search then also tries the options in `OWN`.
    """
    space = {}
    shared = tune.space or (OWN.get(name, {}) if tune.search == "random" else {})
    for section, given in (("tune.space", shared), ("algorithm.tune", own)):
        for key, values in given.items():
            if key in known:
                space[key] = _check_space(section, key, values, known[key], name)
            elif section == "algorithm.tune":
                checks.options(section, name, known, {key: values})
    lr = written.get("lr", known["lr"].default) if "lr" in known else None
    if not tune.space and "lr" not in space and isinstance(lr, int | float) and lr > 0:
        number("lr", lr, at_least=1e-300, at_most=1e300)  # its range must be finite
        low, high = (float(f"{factor * lr:.6g}") for factor in (0.1, 10))
        space["lr"] = {"from": low, "to": high, "scale": "log"}
    for key, values in space.items():
        if tune.search == "grid" and not isinstance(values, list):
            raise InputError(
                f"`tune.search` grid needs lists of values in [tune.space], but {key} "
                f"of {name} has a range."
            )
    # The order does not depend on how they were written.
    return dict(sorted(space.items(), key=lambda item: (item[0] != "lr", item[0])))


def _check_space(
    section: str, key: str, values: Any, parameter: inspect.Parameter, name: str
) -> list[Any] | dict[str, Any]:
    """The checked list of values, or range with its scale, of one option."""
    where = f"{section}.{key}"
    if key in COLUMNS:
        raise InputError(
            f"`{where}` cannot be tuned, because a column of the records "
            f"already has the name {key!r}."
        )
    if isinstance(values, list) and values:
        for value in values:
            checks.options(section, name, {key: parameter}, {key: value})
            if values.count(value) > 1:
                raise InputError(
                    f"values of `{where}` must differ, got {value!r} twice."
                )
        return values
    if not isinstance(values, dict) or not {"from", "to"} <= values.keys():
        raise InputError(
            f"`{where}` must be a list of values or a range such as "
            f"{{ from = 0.01, to = 1.0 }}, got {values!r}."
        )
    for other in values:
        if other not in ("from", "to", "scale"):
            near = checks.suggestion(other, ("from", "to", "scale"))
            raise InputError(f"the range `{where}` has no {other!r}.{near}")
    low, high, scale = values["from"], values["to"], values.get("scale", "log")
    for value in (low, high):
        checks.options(section, name, {key: parameter}, {key: value})
    one_of(f"{where}.scale", scale, ("log", "linear"))
    number(f"{where}.from", low)
    number(f"{where}.to", high, above=low)
    if scale == "log" and low <= 0:
        raise InputError(
            f"`{where}.from` must be greater than 0 on its logarithmic scale, got "
            f'{low!r}: set scale = "linear" or another value.'
        )
    # Whole ends give whole numbers, except where the option is a real number.
    if isinstance(parameter.default, float) or not isinstance(low, type(high)):
        low, high = float(low), float(high)
    return {"from": low, "to": high, "scale": scale}


def settings_of(
    tune: Tune, space: Mapping[str, Any], written: Mapping[str, Any], seed: int
) -> tuple[Options, ...]:
    """The settings to try, all different; the first has the written values.

    If the space has only lists, these are all their combinations, or a random choice of
    `trials` of them.
    """
    first = {key: written[key] for key in space if key in written}
    if all(isinstance(values, list) for values in space.values()):
        return tuple(_combinations(space, first, tune.trials, seed))
    draws = {
        key: [_draw(values, u) for u in _uniform(_DRAWN * tune.trials, seed, key)]
        for key, values in space.items()
    }
    found: list[Options] = []
    for row in zip(*draws.values(), strict=True):
        setting = dict(zip(draws, row, strict=True)) | ({} if found else first)
        if setting not in found:
            found.append(setting)
        if len(found) == tune.trials:
            break
    return tuple(found)


def _uniform(count: int, seed: int, key: str) -> list[float]:
    rng = seeds.generator(seed, "tune", key)
    return torch.rand(count, generator=rng, dtype=torch.float64).tolist()


def _draw(values: list[Any] | dict[str, Any], u: float) -> Any:
    """The value at position u, from 0 to 1, of a list or range.

    Real numbers are rounded to four digits, so that the printed value is the used one.
    """
    if isinstance(values, list):
        return values[int(u * len(values))]
    low, high, log = values["from"], values["to"], values["scale"] == "log"
    whole = isinstance(low, int)
    end = high + 1 if whole else high
    value = low * (end / low) ** u if log else low + u * (end - low)
    return min(max(int(value) if whole else float(f"{value:.4g}"), low), high)


def _combinations(
    space: Mapping[str, list[Any]], first: Options, trials: int, seed: int
) -> list[Options]:
    """The written setting, if any, and others in the order of the grid."""

    def combination(place: int) -> Options:
        setting = {}
        for key, values in reversed(list(space.items())):
            place, which = divmod(place, len(values))
            setting[key] = values[which]
        return {key: setting[key] for key in space}

    head = [combination(0) | first] if first else []
    total = math.prod(len(values) for values in space.values())
    rng = random.Random(seeds.key(seed, "tune", "grid", *space))
    places = rng.sample(range(total), min(total, trials + 1))
    others = [place for place in places if combination(place) not in head]
    return head + [combination(p) for p in sorted(others[: trials - len(head)])]


def choose(
    search: Search,
    train: Callable[[Search, int, Rung], Step],
    keep: Callable[[Search, list[int]], None],
    *,
    higher: bool,
) -> Search:
    """The search after its last step, with the trial that it chose.

    Args:
        search: the results so far.
        train: brings a trial to the end of a rung, from where it stopped.
        keep: a function that gets, after each step, the trials that may go on.
        higher: whether a higher score is better. Ties go to the earlier trial.

    Raises:
        TrainingError: when no trial could be trained.
    """
    going = list(range(len(search.settings)))
    # After the last rung one trial is left, which is chosen.
    onwards = [*(rung.trials for rung in search.rungs[1:]), 1]
    for rung, count in zip(search.rungs, onwards, strict=True):
        for trial in going:
            if search.step(trial, rung.rounds) is None:
                step = train(search, trial, rung)
                search = replace(search, steps=(*search.steps, step))
                keep(search, going)
        going = _rank(search, going, rung, higher)[:count]
        if not going:
            raise TrainingError(
                f"{search.label} (seed {search.seed}): none of the "
                f"{len(search.settings)} settings of [tune.space] could be trained; "
                "smaller step sizes usually help."
            )
    search = replace(search, chosen=going[0])
    keep(search, [])
    return search


def _rank(search: Search, going: list[int], rung: Rung, higher: bool) -> list[int]:
    """The trials that did not fail, the best first."""
    scores = {}
    for trial in going:
        step = search.step(trial, rung.rounds)
        if step is not None and step.scores:
            scores[trial] = -step.score if higher else step.score
    return sorted(scores, key=lambda trial: (scores[trial], trial))


def folds_of(federation: Federation, folds: int, seed: int) -> list[Federation]:
    """The federation once for each fold of its training and validation data.

    In federation j, every client's fold j is its validation part and its other folds
    are its training part. The test part does not change.
    """
    n = len(federation)
    who = torch.arange(n)
    pieces = [federation.train.rows(who), federation.validation.rows(who)]
    index = torch.cat([index[mask] for index, mask in pieces])
    owner = torch.cat([who.repeat_interleave(mask.sum(1)) for _, mask in pieces])
    index, start, size = part(index, owner, n)
    owner = who.repeat_interleave(size)
    # Half of three samples would leave a client only one to train on.
    needed = max(folds, 4 if folds == 2 else 3)
    if int(size.min()) < needed:
        raise InputError(
            f"`tune.folds` = {folds} needs at least {needed} samples of every client "
            f"outside its test part, but {federation.name_of(int(size.argmin()))} of "
            f"`{federation.name}` has {int(size.min())}."
        )
    # Parts list samples by their content, so their places do not depend on the file.
    place = torch.arange(len(index)) - start[owner]
    names = federation.clients.tolist(), federation.names
    rank, _ = ranks(owner, place, streams(*names, seed, "folds"))
    made = []
    for j in range(folds):
        held = rank % folds == j
        train = part(index[~held], owner[~held], n)
        validation = part(index[held], owner[held], n)
        made.append(replace(federation, train=train, validation=validation))
    return made
