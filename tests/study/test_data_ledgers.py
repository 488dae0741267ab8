"""Claims about the ledger of a data set, which all studies of a runs folder share."""

from __future__ import annotations

import json
import shutil

import pytest

from coterie.checks import InputError
from coterie.clients.kernels import Kernel
from coterie.privacy.accounting.gaussian import epsilon_of
from coterie.privacy.mechanisms.per_sample.clipping import ClippedKernel
from coterie.records.ledgers import LEDGER, SPENDING, LedgerEntry
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.loops import training_of
from coterie.study.private.accounting.spending import PARTNERS, total_epsilon
from coterie.study.setup import prepare
from support.private_runs import entries
from support.tiny_studies import LINEAR, made

DELTA = 1e-5
TWO = [{"name": "local", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}]
COST = (2 * 0.5 / (4.0 * 0.5)) ** 2
"""mu^2 of one release with clip 0.5 and noise 4: (sensitivity / noise)^2."""


def private(name: str, *, data=LINEAR["data"], algorithm=TWO, rounds=3, **privacy):
    privacy = {"clip": 0.5, "noise": 4.0, "delta": DELTA, **privacy}
    tables = {**LINEAR, "name": name, "data": data, "algorithm": algorithm}
    return made({**tables, "privacy": privacy}, rounds=rounds)


def test_studies_on_the_same_data_add_up_and_the_same_one_counts_once(tmp_path):
    lines: list[str] = []
    first = run_study(private("one"), runs=tmp_path)
    run_study(private("one"), runs=tmp_path)  # which trains nothing
    second = run_study(private("two"), runs=tmp_path, notice=lines.append)
    kept = [json.loads((r.folder / SPENDING).read_text()) for r in (first, second)]
    one, both = (epsilon_of((k * 3 * COST) ** 0.5, DELTA) for k in (1, 2))
    assert kept[0]["study"] == kept[0]["all"] == pytest.approx(one, rel=1e-6)
    assert kept[1]["study"] == pytest.approx(one, rel=1e-6)
    assert kept[1]["all"] == pytest.approx(both, rel=1e-6)
    assert kept[1]["studies"] == 2
    assert any(f"{both:.3g} together with 1 other private study" in s for s in lines)


def test_other_data_have_a_ledger_of_their_own(tmp_path):
    run_study(private("one"), runs=tmp_path)
    run_study(private("one", data={**LINEAR["data"], "samples": 21}), runs=tmp_path)
    assert len(list((tmp_path / LEDGER).iterdir())) == 2


@pytest.mark.parametrize(("source", "times"), [("seed", 1), ("system", 2)])
def test_a_second_try_is_charged_where_its_noise_is_fresh(tmp_path, source, times):
    study = private("one", noise_source=source)
    shutil.rmtree(run_study(study, runs=tmp_path).folder)
    run_study(study, runs=tmp_path)
    spent = [entry.spent for entry in entries(tmp_path) if entry.label == "fedavg"]
    assert spent == [pytest.approx(3 * COST)] * times


def test_a_study_that_is_refused_after_clients_told_their_means_is_charged(tmp_path):
    told = [{"name": "all_for_one", "weights": "means(20)"}]
    study = private("one", algorithm=told, noise=1.0)
    with pytest.raises(InputError, match="the ledger of these data has it"):
        run_study(study, runs=tmp_path)
    (entry,) = entries(tmp_path)
    assert entry.label == PARTNERS
    assert entry.spent == pytest.approx((1 / 0.5) ** 2)  # noise is half for clients


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_what_a_study_refuses_it_finds_without_asking_clients(monkeypatch, unit):
    algorithm = [{"name": "gradient_tracking", "lr": 0.1}]
    tables = {**LINEAR, "algorithm": algorithm, "graph": {"edges": "ring"}}
    privacy = {"clip": 0.5, "noise": 4.0, "unit": unit}
    study = study_of({**tables, "privacy": privacy})
    setup = prepare(study, 0)
    kernel, asked = Kernel if unit == "client" else ClippedKernel, []
    grad = kernel.grad

    def spy(self, points, batch):
        samples, _ = (self if unit == "client" else self._kernel).data(batch.index)
        asked.append(bool(samples.any()))
        return grad(self, points, batch)

    monkeypatch.setattr(kernel, "grad", spy)
    training_of(setup, study.algorithms[0]).like()
    assert not any(asked)
    assert asked or unit == "client"  # single samples are tried in a round


def test_whole_clients_are_not_hidden_by_studies_that_hide_samples():
    of_clients = LedgerEntry("a", "fedavg", 0, "client", 3, 0.5)
    of_samples = LedgerEntry("b", "fedavg", 0, "sample", 3, [[2.0, 1.0, False, 2]], [])
    alone, complete = total_epsilon([of_clients, of_samples], "client", DELTA)
    assert alone == pytest.approx(epsilon_of(0.5**0.5, DELTA)) and complete
    # Both are Gaussian releases without sampling, so that squares add: 1/2 + 2 / 4.
    both, _ = total_epsilon([of_clients, of_samples], "sample", DELTA)
    assert epsilon_of(1.0, DELTA) <= both * (1 + 1e-6) <= 1.2 * epsilon_of(1.0, DELTA)
    unknown = of_samples._replace(reserved=None)
    assert not total_epsilon([unknown], "sample", DELTA)[1]
