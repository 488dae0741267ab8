"""The bench of structures: methods side by side on federations nobody tuned them on.

Unless a family says otherwise, every method runs 20 rounds of 20 steps of 8 samples.
Scores are means over clients of their own models' test scores in per cent: accuracy,
or, of quantities, R2 against the mean of the client's own test data, where less than
-100 counts as -100. Costs are gradients and processor time in units of local
training's, and bytes in units of FedAvg's. A sample's loss without its gradient counts
as a third of a gradient, whether it was validation or training data that a client
looked at. What a client does once to use a model (fine-tuning) is not counted.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from torch import Tensor, nn

import coterie as co
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError, integer, one_of
from coterie.cli import Claim, items_of, settings
from coterie.clients.samples import Batch
from coterie.data import Federation, Table, load
from coterie.graphs import edges_of, gossip_matrix
from coterie.models import OBJECTIVES, adapt_objective, build, ravel
from coterie.optim import Descent, sgd
from coterie.types import Algorithm, Info, Oracle, Rows

from .aims import claims
from .structures import FAMILIES, Family, Training, federation_of

AS_USUAL = Training("mlp")
ROUNDS, STEPS, BATCH = AS_USUAL.rounds, AS_USUAL.steps, AS_USUAL.batch
FIRST, SEEDS = 9900, 4
"""Methods are designed on seeds below 1000 (`first=0`). No change was made because of
seeds from 9700 on, which are recorded. Seeds from 9000 to 9611 are used up. Whoever
acts on what the default shows must move it on."""


def normalised_mlp(shape: Sequence[int], outputs: int) -> nn.Module:
    """A layer of 32 hidden units with batch normalisation, and the head."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 32))
    parts = {"body": body, "norm": nn.BatchNorm1d(32), "activation": nn.ReLU()}
    module = nn.Sequential(OrderedDict(parts, head=nn.Linear(32, outputs)))
    return co.with_batch_statistics(module)


MODELS = {
    "linear": lambda shape, outputs: co.models.linear(shape, outputs),
    "logistic": lambda shape, outputs: co.models.logistic(shape, outputs),
    "mlp": lambda shape, outputs: co.models.mlp(shape, outputs, hidden=(32,)),
    "cnn": lambda shape, outputs: co.models.cnn(shape, outputs),
    "normalised": normalised_mlp,
}
"""Models by name; `normalised` is the mlp with batch normalisation."""

LR = {"digits": 0.3, "fashion_mnist": 0.05, "mnist": 0.05}
GENERATED = "generated"
DATA = ("digits", "fashion_mnist", GENERATED)
FACTORS = (1 / 3, 1.0, 3.0)
"""Of the step size, among which a tuned method chooses by validation data."""

FORWARD = 1 / 3
"""What a sample's loss costs, in gradients: a backward pass is about two forward."""


class Grouped(NamedTuple):
    """Models, the same for all in a true group."""

    x: Rows  # (n, D)


def told(groups: Tensor, sizes: Tensor, lr: float, steps: int) -> Algorithm:
    """The oracle: FedAvg in each of the true groups."""
    rule = Descent(lr)

    def step(state: Grouped, oracle: Oracle, rng: object) -> tuple[Grouped, Info]:
        none = state.x[:, :0]
        x, _ = oracle.each(sgd, state.x, none, rule=rule, steps=steps, t=0)
        mean = oracle.average(sizes, x, groups)
        # A group of whom nobody takes part keeps its model.
        heard = torch.isin(groups, groups[oracle.active])
        return Grouped(torch.where(heard[:, None], mean, state.x)), {}

    return Algorithm(lambda x, oracle: Grouped(x), step)


class Maker(Protocol):
    """Makes a method for a federation; None where it cannot be used."""

    def __call__(
        self, federation: Federation, lr: float, steps: int = STEPS
    ) -> Algorithm | None:
        """The method with this step size, and steps a round."""


def _of(name: str, **options: object) -> Maker:
    def make(federation: Federation, lr: float, steps: int = STEPS) -> Algorithm:
        given = {"lr": lr, "steps": steps, **options}
        if name == "fedavg_finetune":
            given |= {"tune_steps": STEPS, "tune_lr": lr}
        if name == "adaptive_all_for_one":
            given |= {"every": steps}
        sizes = federation.train.size
        if name in ("local", "cobo", "fedamp", "fedfomo"):
            return ALGORITHMS[name](**given)
        # Adaptive All-for-one weighs who is near alike.
        first = None if name == "adaptive_all_for_one" else sizes
        return ALGORITHMS[name](first, **given)

    return make


def _oracle(federation: Federation, lr: float, steps: int = STEPS) -> Algorithm | None:
    if federation.clusters is None:
        return None
    return told(federation.clusters, federation.train.size, lr, steps)


def _ifca(federation: Federation, lr: float, steps: int = STEPS) -> Algorithm:
    known = federation.clusters
    clusters = 2 if known is None else len(known.unique())
    # Of clients who are all different, as many models as clients would be local's.
    clusters = 6 if clusters > len(federation) / 2 else clusters
    return _of("ifca", clusters=clusters)(federation, lr, steps)


def _on(graph: str) -> Maker:
    def make(federation: Federation, lr: float, steps: int = STEPS) -> Algorithm:
        n = len(federation)
        mixing = gossip_matrix(edges_of(graph, n), n)
        return ALGORITHMS["neighbours"](mixing, lr=lr, steps=steps)

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
        for name in (
            "apfl",
            "aruba",
            "cobo",
            "fedamp",
            "feddyn",
            "fedfomo",
            "fedprox",
            "per_fedavg",
            "pfedme",
            "scaffold",
            "wga_bc",
        )
    },
}


class Course(NamedTuple):
    """A method on one federation: scores of clients, and what they cost, by round."""

    test: np.ndarray  # (R, N)
    validation: float
    gradients: np.ndarray  # (R,) of a client, on average
    bytes: np.ndarray  # (R,)
    seconds: float  # of the processor, without testing
    noise: np.ndarray  # (N,) twice the standard error of a difference of two scores


def course(
    make: Maker,
    federation: Federation,
    lr: float,
    seed: int,
    training: Training = AS_USUAL,
) -> Course | None:
    """One run."""
    algorithm = make(federation, lr, training.steps)
    if algorithm is None:
        return None
    simulation, x = clients_of(federation, seed, training)
    looks = count_looks(simulation)
    tests, gradients, sent, seconds = [], [], [], 0.0
    options = {"rounds": training.rounds, "participation": training.participation}
    looks.samples, begun = 0, time.process_time()
    for r in co.run_rounds(algorithm, simulation, x, seed=seed, **options):
        seen = looks.samples / len(federation)
        models = algorithm.personal(r.state, simulation.at(r.t, purpose="use"))
        seconds += time.process_time() - begun
        tests.append(scores(simulation, models, "test"))
        gradients.append(float(r.gradients.mean()) + FORWARD * seen)
        sent.append(4 * r.traffic.total)
        looks.samples, begun = 0, time.process_time()
    return Course(
        np.array(tests),
        float(scores(simulation, models, "validation").mean()),
        np.cumsum(gradients),
        np.cumsum(sent),
        seconds,
        noise_of(federation),
    )


def clients_of(
    federation: Federation, seed: int, training: Training
) -> tuple[co.Simulation, Tensor]:
    """Clients of a federation, and the models with which they begin."""
    shape = tuple(federation.features.shape[1:])
    module = build(lambda: MODELS[training.model](shape, federation.outputs), seed)
    simulation = co.Simulation(
        federation,
        module,
        objective=_objective(federation.task),
        batch_size=training.batch,
        seed=seed,
    )
    return simulation, ravel(module).repeat(len(federation), 1)


def _objective(task: str) -> co.models.Objective:
    """That of the task, and R2 of quantities."""
    if task == "regression":
        return adapt_objective(OBJECTIVES[task], task, measures=["r2"], score="r2")
    return OBJECTIVES[task]


class Looks:
    """How many samples' losses clients have computed without a gradient."""

    samples = 0


def count_looks(simulation: co.Simulation) -> Looks:
    """Counts from now on what methods ask of clients, not what evaluation does."""
    looks, kernel = Looks(), simulation.kernel

    def counted(of: Callable[[Tensor, Batch], Tensor]) -> Callable[..., Tensor]:
        def look(points: Tensor, batch: Batch) -> Tensor:
            looks.samples += int((batch.weight > 0).sum())
            return of(points, batch)

        return look

    kernel.loss, kernel.losses = counted(kernel.loss), counted(kernel.losses)
    return looks


def scores(simulation: co.Simulation, models: Tensor, part: str) -> np.ndarray:
    """(N,) accuracy, or R2 where less than -1 and what is not finite count as -1."""
    found = simulation.evaluate(models, part)[simulation.objective.score].numpy()
    return np.nan_to_num(found, nan=-1.0, neginf=-1.0).clip(-1)


def noise_of(federation: Federation) -> np.ndarray:
    """(N,) twice the standard error of a difference of two test scores near 0.8.

    Of m samples, a share p has the variance p (1 - p) / m, and R2 of normal errors
    2 (1 - R2)^2 / m.
    """
    variance = 2 * 0.2**2 if federation.task == "regression" else 0.8 * 0.2
    return 2 * np.sqrt(2 * variance / federation.test.size.numpy())


def row(runs: dict[str, Course], name: str) -> dict[str, float]:
    """Scores of a method at equal rounds, gradients and bytes, and its costs."""
    mine, local, fedavg = runs[name], runs["local"], runs["fedavg"]

    def within(spent: np.ndarray, budget: float) -> float:
        affordable = int((spent <= budget * (1 + 1e-9)).sum())
        return 100 * float(mine.test[affordable - 1].mean()) if affordable else np.nan

    lost = local.test[-1] - mine.test[-1]
    return {
        "score": 100 * float(mine.test[-1].mean()),
        "at_gradients": within(mine.gradients, local.gradients[-1]),
        "at_bytes": within(mine.bytes, fedavg.bytes[-1]),
        "gradients": mine.gradients[-1] / local.gradients[-1],
        "bytes": mine.bytes[-1] / fedavg.bytes[-1],
        "time": mine.seconds / local.seconds,
        "lose": 100 * float((lost > 0.05 + mine.noise).mean()),
    }


def best_tuned(
    make: Maker, federation: Federation, lr: float, seed: int, training: Training
) -> Course | None:
    """The run with the step size of best validation score."""
    runs = [course(make, federation, factor * lr, seed, training) for factor in FACTORS]
    found = [run for run in runs if run is not None]
    return max(found, key=lambda run: run.validation) if found else None


class Job(NamedTuple):
    """One federation on which all methods run."""

    data: str
    family: str
    seed: int
    more: str = "quick"  # the setting `methods`
    tuned: bool = False
    model: str = "mlp"
    data_dir: str = ""


def measured(job: Job) -> list[dict[str, object]]:
    """All methods on one federation."""
    makers = _makers(job.more)
    federation, lr, training = federation_for(job)
    # What is used for the first time takes longer.
    course(QUICK["local"], federation, lr, job.seed, training._replace(rounds=1))
    run = best_tuned if job.tuned else course
    runs = {
        name: run(make, federation, lr, job.seed, training)
        for name, make in makers.items()
    }
    known = {name: one for name, one in runs.items() if one is not None}
    place = {"data": job.data, "family": job.family, "seed": job.seed}
    return [{**place, "method": name, **row(known, name)} for name in known]


def _makers(methods: str) -> dict[str, Maker]:
    """The methods of a setting: `quick`, `all`, or a part of the names of slow ones."""
    if methods == "quick":
        return QUICK
    found = {
        name: make for name, make in SLOW.items() if methods == "all" or methods in name
    }
    if not found:
        raise InputError(
            f"`methods` must be quick, all or part of a name, got {methods!r}; there "
            f"are {', '.join(SLOW)}."
        )
    return QUICK | found


def federation_for(job: Job) -> tuple[Federation, float, Training]:
    """The federation of a job, and with which step size and how methods train on it."""
    family = FAMILIES[job.family]
    federation = federation_of(family, _table(job.data, job.data_dir), job.seed)
    training = family.training._replace(model=family.training.model or job.model)
    return federation, training.lr or LR[job.data], training


@functools.cache
def _table(data: str, data_dir: str) -> Table | None:
    if data == GENERATED:
        return None
    return load(data, **({} if data == "digits" else {"data_dir": data_dir}))


def _measured_all(jobs: list[Job], processes: int) -> Iterator[list[dict[str, object]]]:
    """What the jobs give, in their order; processes have one thread each."""
    if processes == 1:
        yield from map(measured, jobs)
        return
    context = multiprocessing.get_context("spawn")
    options = {"initializer": items_of, "initargs": ("coterie",)}  # imports this file
    with ProcessPoolExecutor(processes, context, **options) as pool:
        yield from pool.map(_on_one_thread, jobs)


def _on_one_thread(job: Job) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    return measured(job)


def structures(overrides: Sequence[str]) -> list[Claim]:
    """Methods on 35 structures: scores, cost, and who loses.

    Settings: `data=digits,generated`, `seeds=2`, `first=0` (the first of the seeds),
    `methods=all` (or a part of the name of a slow method, such as `neighbours`),
    `tuned=true`, `families=alike`,
    `model=logistic` (or `cnn` of images), `data_dir=...` of Fashion-MNIST and MNIST,
    `processes=1`, and `to=table.csv` for every single run.
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
        processes=2,
        to="",
    )
    jobs = jobs_of(given)
    rows: list[dict[str, object]] = []
    console = Console(stderr=True)
    for job, found in zip(jobs, _measured_all(jobs, given["processes"]), strict=True):
        rows += found
        if job.seed < given["first"] + given["seeds"] - 1:
            continue
        console.print(f"{job.data}, {job.family}: {_line(rows, job)}")
        if given["to"]:
            pd.DataFrame(rows).round(4).to_csv(given["to"], index=False)
    return claims(pd.DataFrame(rows))


def jobs_of(given: dict[str, Any]) -> list[Job]:
    """All federations that the settings ask for, in the order of the table."""
    integer("seeds", given["seeds"], at_least=1)
    integer("first", given["first"], at_least=0)
    integer("processes", given["processes"], at_least=1)
    _makers(given["methods"])
    model = one_of(
        "model",
        given["model"],
        [m for m in MODELS if m not in ("linear", "normalised")],
    )
    data, wanted = given["data"].split(","), given["families"].split(",")
    for name in data:
        one_of("data", name, (*LR, GENERATED))
    if model == "cnn" and "digits" in data:
        raise InputError("`model=cnn` needs images, but digits has rows.")
    jobs = [
        Job(
            source,
            name,
            seed,
            given["methods"],
            given["tuned"],
            model,
            given["data_dir"],
        )
        for source in data
        for name, family in FAMILIES.items()
        if any(part in name for part in wanted) and _fits(family, source)
        for seed in range(given["first"], given["first"] + given["seeds"])
    ]
    if not jobs:
        raise InputError(
            f"`families` must be part of some name, got {given['families']!r}; there "
            f"are {', '.join(FAMILIES)}."
        )
    return jobs


def _fits(family: Family, data: str) -> bool:
    return (family.source is None) == (data != GENERATED)


def _line(rows: list[dict[str, object]], job: Job) -> str:
    table = pd.DataFrame(rows)
    mine = table[(table["data"] == job.data) & (table["family"] == job.family)]
    costs = ["score", "gradients", "bytes", "time"]
    means = mine.groupby("method", sort=False)[costs].mean()
    return ", ".join(
        f"{name} {one.score:.1f} ({one.gradients:.2f} x {one.bytes:.2f} x "
        f"{one.time:.1f})"
        for name, one in means.iterrows()
    )
