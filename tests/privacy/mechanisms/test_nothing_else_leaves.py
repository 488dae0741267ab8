"""Whatever clients' data are, nothing leaves but clipped rows and answers with noise.

We put fixed numbers in the place of every release: that of a row, of a gradient and of
a loss. Then a run on other data must send exactly the same. What differs would leave
without noise, so without an entry in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import seeds
from coterie.clients.groups import SingleProcess
from coterie.clients.oracles import SimulatedOracle
from coterie.data.federation import Table
from coterie.engine.rounds import init_oracle, participants
from coterie.privacy.mechanisms.per_sample.mechanisms import SampleMechanism
from coterie.privacy.mechanisms.rows import Mechanism
from coterie.study.config import study_of
from coterie.study.private.mechanisms.guards import guard_of
from coterie.study.setup import data_of, prepare
from coterie.types import tensor_of

CLIENTS, ROUNDS, SHARE = 5, 3, 0.6
VERBS = "average", "central", "mix"


def table(seed: int) -> Table:
    """Small images whose numbers and labels depend on the seed, and nothing else."""
    rng, m = torch.Generator().manual_seed(seed), 80
    x = (1 + 3 * seed) * torch.randn(m, 1, 10, 10, generator=rng)
    y = torch.randint(3, (m,), generator=rng)
    y[:15] = torch.arange(15) % 3  # every client has all classes
    group, is_test = torch.arange(m) % CLIENTS, torch.arange(m) >= 60
    return Table("t", x, y, "classification", 3, group=group, is_test=is_test)


class Releases:
    """Fixed numbers, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._numbers = count()

    def row(self, mechanism, x, ref, *_: Any, **__: Any) -> Tensor:
        return torch.zeros_like(x) + ref + self._next(x)

    def gradient(self, mechanism, g, *_: Any) -> Tensor:
        return self._next(g)

    def losses(self, mechanism, losses, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        mean = self._next(losses[:, 0]).abs()
        return mean, torch.where(losses.isnan(), losses, mean[:, None])

    def _next(self, like: Tensor) -> Tensor:
        rng = torch.Generator().manual_seed(next(self._numbers))
        return torch.randn(like.shape, generator=rng).to(like) / 20


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)
    elif not callable(value) and value is not None:
        found = tensor_of(value) if hasattr(value, "rows") else torch.as_tensor(value)
        yield found.detach().to_dense().clone()


def what_leaves(monkeypatch, tables: dict, seed: int) -> list[list[Tensor]]:
    """All rows of active clients, and all weights, of a private run on some data."""
    sent: list[list[Tensor]] = []

    def listening(verb: str):
        inner = getattr(SimulatedOracle, verb)

        def call(oracle, *given: Any, **options: Any) -> Any:
            some = [given[2:] if verb == "central" else given, *options.values()]
            found = list(tensors(some))
            for j, one in enumerate(found):  # those who take no part send nothing
                if one.dim() == 2 and (verb == "central" or j == 1):
                    found[j] = one[oracle.active]
            sent.append(found)
            return inner(oracle, *given, **options)

        return call

    study = study_of(tables, data=table(seed))
    setup = prepare(study, 0, data_of(study).federations[0], SingleProcess())
    (entry,) = setup.study.algorithms
    guard, fixed = guard_of(setup, entry), Releases()
    clients = guard.clients or setup.asked_by(entry)
    with monkeypatch.context() as patch:
        patch.setattr(Mechanism, "release", lambda *a, **k: fixed.row(*a, **k))
        for name, one in (("", fixed.gradient), ("_to_losses", fixed.losses)):
            patch.setattr(
                SampleMechanism, f"add_noise{name}", lambda *a, one=one, **k: one(*a)
            )
        for verb in VERBS:
            patch.setattr(SimulatedOracle, verb, listening(verb))
        state = guard.method.init(setup.x.clone(), init_oracle(clients))
        for t in range(1, ROUNDS + 1):
            active = participants(CLIENTS, SHARE, 0, t)
            rng = seeds.generator(0, "algorithm", t)
            state, _ = guard.method.step(state, clients.at(t, active), rng)
    return sent


def private(name: str, unit: str = "client", **tables: Any) -> dict:
    privacy = {"unit": unit, "clip": 0.7, "noise": 2.0}
    run = {"rounds": ROUNDS, "batch_size": 6, "participation": SHARE}
    return {
        "name": "private",
        "split": {"name": "natural"},
        "model": {"name": "cnn", "width": 2},
        "run": {**run, "baselines": False},
        "algorithm": [{"name": name, "steps": 2}],
        "privacy": privacy,
        **tables,
    }


NEW = (
    *("fedprox", "scaffold", "feddyn", "fedamp", "fedfomo", "fedper", "lg_fedavg"),
    *("fedbabu", "fedala"),
)
BATCH = {"name": "cnn", "width": 2, "norm": "batch"}
RANDOM = {"name": "cnn", "width": 2, "dropout": 0.2, "augment": ["crop(2)"]}
CASES = {
    **{f"{name} {unit}": private(name, unit) for name in NEW
       for unit in ("client", "sample")},
    "batch statistics": private("fedavg", model=BATCH),
    "batch statistics and a second vector": private("feddyn", model=BATCH),
    "batch normalisation at home": private("fedbn", model=BATCH),
    "personal statistics": private(
        "fedavg", model={**BATCH, "personal": ["running_*"]}),
    "frozen statistics": private(
        "fedavg", "sample", model={**BATCH, "norm": "frozen"}),
    "dropout and augmentation": private("fedprox", model=RANDOM),
    "Adam": private("fedavg", optimizer={"name": "adam", "lr": 0.01, "warmup": 2}),
    "Adam on samples": private("feddyn", "sample", optimizer={"name": "adam"}),
    "a server's Adam": private("fedprox", optimizer={"server": "adam"}),
    "a server's momentum": private(
        "fedper", "sample", optimizer={"server": "momentum"}),
    "epochs": private("feddyn", algorithm=[{"name": "feddyn", "epochs": 2}]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_leaves_besides_releases_does_not_depend_on_data(monkeypatch, case):
    one, other = (what_leaves(monkeypatch, CASES[case], seed) for seed in (0, 1))
    assert len(one) == len(other) >= ROUNDS
    for ours, theirs in zip(one, other, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)


def test_without_releases_the_rows_of_other_data_are_others(monkeypatch):
    """So the claim above is not true of any run."""
    monkeypatch.setattr(Releases, "row", lambda *given, **_: given[2])
    one, other = (what_leaves(monkeypatch, private("fedavg"), seed) for seed in (0, 1))
    assert not torch.equal(one[-1][1], other[-1][1])
