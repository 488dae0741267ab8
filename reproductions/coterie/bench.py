"""The bench of structures: methods side by side on federations nobody tuned them on.

Every method runs 20 rounds of 20 steps of 8 samples on twelve federations of a family.
Scores are the mean test accuracy of clients' own models; costs are gradients in units
of local training's and bytes in units of FedAvg's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from torch import Tensor

import coterie as co
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError, integer, one_of
from coterie.cli import Claim, settings
from coterie.data import Federation, Table, load
from coterie.graphs import edges_of, gossip_matrix
from coterie.models import build, ravel
from coterie.optim import Descent, sgd
from coterie.types import Algorithm, Info, Oracle, Rows

from .structures import FAMILIES, Family, federation_of

ROUNDS, STEPS, BATCH = 20, 20, 8
FIRST, SEEDS = 2000, 12
"""Other seeds than those on which the rules of the method were chosen."""

MODELS = {
    "mlp": lambda shape: co.models.mlp(shape, 10, hidden=(32,)),
    "logistic": lambda shape: co.models.logistic(shape, 10),
    "cnn": lambda shape: co.models.cnn(shape, 10),
}
LR = {"digits": 0.3, "fashion_mnist": 0.05, "mnist": 0.05}
DATA = ("digits", "fashion_mnist")
GROUPS = [
    name for name in FAMILIES if name.startswith(("two", "four", "six", "turned"))
]
SKEWED = [name for name in FAMILIES if name.startswith("Dirichlet")]
FACTORS = (1 / 3, 1.0, 3.0)
"""Of the step size, among which a tuned method chooses by validation data."""


class Grouped(NamedTuple):
    """Models, the same for all in a true group."""

    x: Rows  # (n, D)


def told(groups: Tensor, sizes: Tensor, lr: float) -> Algorithm:
    """The oracle: FedAvg in each of the true groups."""
    rule = Descent(lr)

    def step(state: Grouped, oracle: Oracle, rng: object) -> tuple[Grouped, Info]:
        none = state.x[:, :0]
        x, _ = oracle.each(sgd, state.x, none, rule=rule, steps=STEPS, t=0)
        return Grouped(oracle.average(sizes, x, groups)), {}

    return Algorithm(lambda x, oracle: Grouped(x), step)


Maker = Callable[[Federation, float], Algorithm | None]


def _of(name: str, **options: object) -> Maker:
    def make(federation: Federation, lr: float) -> Algorithm:
        given = {"lr": lr, "steps": STEPS, **options}
        if name == "fedavg_finetune":
            given |= {"tune_steps": STEPS, "tune_lr": lr}
        if name == "adaptive_all_for_one":
            given |= {"every": STEPS}
        sizes = federation.train.size
        if name in ("local", "cobo"):
            return ALGORITHMS[name](**given)
        # Adaptive All-for-one weighs who is near alike.
        first = None if name == "adaptive_all_for_one" else sizes
        return ALGORITHMS[name](first, **given)

    return make


def _oracle(federation: Federation, lr: float) -> Algorithm | None:
    if federation.clusters is None:
        return None
    return told(federation.clusters, federation.train.size, lr)


def _ifca(federation: Federation, lr: float) -> Algorithm:
    known = federation.clusters
    clusters = 2 if known is None else min(len(known.unique()), 6)
    return _of("ifca", clusters=clusters)(federation, lr)


def _on(graph: str) -> Maker:
    def make(federation: Federation, lr: float) -> Algorithm:
        n = len(federation)
        mixing = gossip_matrix(edges_of(graph, n), n)
        return ALGORITHMS["neighbours"](mixing, lr=lr, steps=STEPS)

    return make


QUICK: dict[str, Maker] = {
    "local": _of("local"),
    "fedavg": _of("fedavg"),
    "fine-tuned": _of("fedavg_finetune"),
    "ditto": _of("ditto"),
    "ifca (told k)": _ifca,
    "coteries": _of("coteries"),
    "oracle": _oracle,
}
SLOW: dict[str, Maker] = {
    "adaptive (paper's)": _of(
        "adaptive_all_for_one", estimator="plain", memory=0.0, confidence=0.0
    ),
    "adaptive (split-sample)": _of("adaptive_all_for_one"),
    "adaptive (against noise)": _of("adaptive_all_for_one", against="noise"),
    "neighbours (of four)": _on("expander(4)"),
    "neighbours (all)": _on("complete"),
    **{
        name: _of(name)
        for name in ("apfl", "aruba", "cobo", "per_fedavg", "pfedme", "wga_bc")
    },
}


class Course(NamedTuple):
    """A method on one federation: scores of clients, and what they cost, by round."""

    test: np.ndarray  # (R, N)
    validation: float
    gradients: np.ndarray  # (R,) of a client, on average
    bytes: np.ndarray  # (R,)
    sizes: np.ndarray  # (N,) test samples


def course(
    make: Maker, federation: Federation, lr: float, seed: int, model: str = "mlp"
) -> Course | None:
    """One run."""
    algorithm = make(federation, lr)
    if algorithm is None:
        return None
    shape = tuple(federation.features.shape[1:])
    module = build(lambda: MODELS[model](shape), seed)
    simulation = co.Simulation(federation, module, batch_size=BATCH, seed=seed)
    x = ravel(module).repeat(len(federation), 1)
    tests, gradients, sent = [], [], []
    for r in co.run_rounds(algorithm, simulation, x, rounds=ROUNDS, seed=seed):
        models = algorithm.personal(r.state, simulation.at(r.t, purpose="use"))
        tests.append(simulation.evaluate(models, "test")["accuracy"].numpy())
        gradients.append(float(r.gradients.mean()))
        sent.append(4 * r.traffic.total)
    held = simulation.evaluate(models, "validation")["accuracy"]
    return Course(
        np.array(tests),
        float(held.mean()),
        np.cumsum(gradients),
        np.cumsum(sent),
        federation.test.size.numpy(),
    )


def row(runs: dict[str, Course], name: str) -> dict[str, float]:
    """Scores of a method at equal rounds, gradients and bytes, and its costs."""
    mine, local, fedavg = runs[name], runs["local"], runs["fedavg"]

    def within(spent: np.ndarray, budget: float) -> float:
        affordable = int((spent <= budget * (1 + 1e-9)).sum())
        return 100 * float(mine.test[affordable - 1].mean()) if affordable else np.nan

    lost = local.test[-1] - mine.test[-1]
    # Twice the standard error of a difference of two shares near 0.8.
    noise = 2 * np.sqrt(2 * 0.8 * 0.2 / mine.sizes)
    return {
        "score": 100 * float(mine.test[-1].mean()),
        "at_gradients": within(mine.gradients, local.gradients[-1]),
        "at_bytes": within(mine.bytes, fedavg.bytes[-1]),
        "gradients": mine.gradients[-1] / local.gradients[-1],
        "bytes": mine.bytes[-1] / fedavg.bytes[-1],
        "lose": 100 * float((lost > 0.05 + noise).mean()),
    }


def best_tuned(
    make: Maker, federation: Federation, lr: float, seed: int, model: str = "mlp"
) -> Course | None:
    """The run with the step size of best validation accuracy."""
    runs = [course(make, federation, factor * lr, seed, model) for factor in FACTORS]
    found = [run for run in runs if run is not None]
    return max(found, key=lambda run: run.validation) if found else None


def measured(
    family: Family,
    table: Table,
    seed: int,
    makers: dict[str, Maker],
    *,
    tuned: bool,
    model: str = "mlp",
) -> list[dict[str, object]]:
    """All methods on one federation."""
    federation, lr = federation_of(family, table, seed), LR[table.name]
    run = best_tuned if tuned else course
    runs = {
        name: run(make, federation, lr, seed, model) for name, make in makers.items()
    }
    known = {name: one for name, one in runs.items() if one is not None}
    return [{"method": name, "seed": seed, **row(known, name)} for name in known]


def structures(overrides: Sequence[str]) -> list[Claim]:
    """Methods on nineteen structures: accuracy, cost, and who loses.

    Settings: `data=digits`, `seeds=2`, `first=5000` (the first of the seeds),
    `methods=all`, `tuned=true`, `families=alike`,
    `model=logistic` (or `cnn` of images), `data_dir=...` of Fashion-MNIST and MNIST,
    and `to=table.csv` for every single run.
    """
    given = settings(
        overrides,
        data=",".join(DATA),
        seeds=SEEDS,
        first=FIRST,
        methods="quick",
        tuned=False,
        families="",
        model="mlp",
        data_dir="",
        to="",
    )
    integer("seeds", given["seeds"], at_least=1)
    integer("first", given["first"], at_least=0)
    slow = one_of("methods", given["methods"], ("quick", "all")) == "all"
    makers = QUICK | (SLOW if slow else {})
    seeds = range(given["first"], given["first"] + given["seeds"])
    wanted, tuned = given["families"].split(","), given["tuned"]
    model = one_of("model", given["model"], MODELS)
    names = [name for name in FAMILIES if any(part in name for part in wanted)]
    if not names:
        raise InputError(
            f"`families` must be part of some name, got {given['families']!r}; there "
            f"are {', '.join(FAMILIES)}."
        )
    console, rows = Console(stderr=True), []
    for data in given["data"].split(","):
        one_of("data", data, LR)
        where = {"data_dir": given["data_dir"]} if data != "digits" else {}
        table = load(data, **where)
        if model == "cnn" and table.features.dim() < 4:
            raise InputError(f"`model=cnn` needs images, but {data} has rows.")
        for name in names:
            for seed in seeds:
                found = measured(
                    FAMILIES[name], table, seed, makers, tuned=tuned, model=model
                )
                rows += [{"data": data, "family": name, **one} for one in found]
            console.print(f"{data}, {name}: {_line(rows, data, name)}")
            if given["to"]:
                pd.DataFrame(rows).round(4).to_csv(given["to"], index=False)
    return claims(pd.DataFrame(rows))


def _line(rows: list[dict[str, object]], data: str, family: str) -> str:
    table = pd.DataFrame(rows)
    mine = table[(table["data"] == data) & (table["family"] == family)]
    means = mine.groupby("method", sort=False)[["score", "gradients", "bytes"]].mean()
    return ", ".join(
        f"{name} {one.score:.1f} ({one.gradients:.2f} x {one.bytes:.2f})"
        for name, one in means.iterrows()
    )


def claims(table: pd.DataFrame) -> list[Claim]:
    """A row for every family, and the numbers that the method must meet."""
    keys = ["data", "family"]
    score = table.pivot_table("score", keys, "method", sort=False)
    ours = (
        table[table["method"] == "coteries"]
        .groupby(keys, sort=False)
        .mean(numeric_only=True)
    )
    found = []
    for place, line in score.iterrows():
        others = ", ".join(
            f"{name} {value:.1f}" for name, value in line.drop("coteries").items()
        )
        cost = ours.loc[place]
        note = (
            f"{cost['gradients']:.2f} times local's gradients, {cost['bytes']:.2f} "
            f"times FedAvg's bytes; {cost['at_gradients']:.1f} at local's gradients, "
            f"{cost['at_bytes']:.1f} at FedAvg's bytes"
        )
        what = f"{place[0]}, {place[1]}"
        found.append(Claim(what, others, f"{line['coteries']:.1f}", None, note))
    return found + _judged(score, ours)


def _judged(score: pd.DataFrame, ours: pd.DataFrame) -> list[Claim]:
    def claim(
        what: str, aim: float, values: pd.Series, *, least: bool = False
    ) -> Claim:
        worst = values.min() if least else values.max()
        misses = values < aim if least else values > aim
        missed = "; ".join(", ".join(place) for place in values.index[misses])
        published = f"at {'least' if least else 'most'} {aim:g}"
        note = f"missed: {missed}" if missed else ""
        return Claim(what, published, f"{worst:.2f} at worst", not missed, note)

    family = score.index.get_level_values("family")
    grouped, skewed = score[family.isin(GROUPS)], score[family.isin(SKEWED)]
    alike = score[family == "all alike"]
    way = 100 * (grouped["coteries"] - grouped["local"]).div(
        grouped["oracle"] - grouped["local"]
    )
    few = way.index.get_level_values("family").str.contains("16 samples")
    behind = skewed[["fine-tuned", "ditto"]].max(1) - skewed["coteries"]
    apart = alike["fedavg"] - alike["coteries"]
    found = [
        claim("gradients, times local's", 2.5, ours["gradients"]),
        claim("bytes, times FedAvg's", 4, ours["bytes"]),
        claim("points below local", 1, score["local"] - score["coteries"]),
        claim("clients that lose, %", 5, ours["lose"]),
        claim("way from local to oracle, %", 90, way[~few], least=True),
        claim("the same with 16 samples, %", 60, way[few], least=True),
        claim("points below fine-tuned and Ditto, Dirichlet", 0.5, behind),
        claim("points below FedAvg, all alike", 1, apart),
    ]
    return [one for one in found if not one.ours.startswith("nan")]
