"""Claims about private studies whose weights are made from the clients' data."""

from __future__ import annotations

import math
import shutil

import pytest
import torch

from coterie.checks import InputError
from coterie.conformance.divided import run_divided
from coterie.planning.private import plan_privacy
from coterie.privacy import epsilon_of, mu_of
from coterie.privacy.accounting.accounts import totals
from coterie.privacy.mechanisms import events_of, partners
from coterie.privacy.mechanisms.partners import (
    PARTNERS,
    PartnerMechanism,
    private_distances,
)
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.identity import choosing_of
from coterie.study.private import guard_of
from coterie.study.private.accounting.spending import PARTNERS as LABEL
from coterie.study.setup import data_of, prepare
from coterie.types import SERVER
from support.private_runs import entries
from support.refusals import refuses

TABLES = {
    "name": "chosen",
    "data": {"name": "digits"},
    "split": {"name": "label_swap", "clients": 4},
    "model": {"name": "logistic"},
    "run": {"rounds": 3, "batch_size": 32, "checkpoint_seconds": 0.0},
}
CHOSEN = {"name": "all_for_all", "lr": 0.1, "weights": "mmd(400)"}
CLOSE = {**CHOSEN, "weights": "mmd(400, 1e9)"}  # all are near, whatever the noise


def study(entry=CLOSE, **privacy):
    tables = {**TABLES, "algorithm": [entry], "privacy": {"clip": 0.5, **privacy}}
    return study_of(tables)


def releases_at_start(guarded):
    """What has been released when training begins."""
    setup = prepare(guarded, 0, data_of(guarded).federations[0])
    guard = guard_of(setup, guarded.algorithms[0])
    clients = guard.clients or setup.simulation
    return guard, guard.method.init(setup.x.clone(), clients.at(0))


@pytest.mark.parametrize("share", [0.1, 0.6])
def test_partners_take_their_share_of_epsilon_and_training_the_rest(tmp_path, share):
    guarded = study(epsilon=30.0, partners=share)
    _, state = releases_at_start(guarded)
    told = [e for e in events_of(state.ledger) if e.verb == PARTNERS]
    whole = mu_of(30.0, 1e-5) ** 2
    expected = torch.full((4,), share * whole, dtype=torch.float64)
    torch.testing.assert_close(totals(told, 4), expected)
    result = run_study(guarded, runs=tmp_path)
    last = result.records.metrics.query("round == 3")["epsilon"]
    assert last.max() == pytest.approx(30.0, rel=1e-6)


def test_with_a_given_noise_partners_cost_one_release_more(tmp_path):
    known = run_study(
        study({**CHOSEN, "weights": "clusters"}, noise=2.0), runs=tmp_path
    )
    chosen = run_study(study(noise=2.0), runs=tmp_path)
    # A release moves by 2 C, with noise 2 C: mu = 1. Round by round, one of each.
    for result, before in ((known, 0), (chosen, 1)):
        spent = result.records.metrics.groupby("round")["epsilon"].max()
        expected = [epsilon_of((t + before) ** 0.5, 1e-5) for t in spent.index]
        assert spent.tolist() == pytest.approx(expected, rel=1e-9)


def test_single_samples_are_told_once_more_and_cost_no_more_than_epsilon(tmp_path):
    guarded = study({**CHOSEN, "weights": "mmd(400)"}, unit="sample", epsilon=20.0)
    _, state = releases_at_start(guarded)
    noise = 1 / (0.25**0.5 * mu_of(20.0, 1e-5))  # a quarter, where nothing is said
    for kinds in state.releases:
        assert (pytest.approx(noise), 1.0, False, 1) in [tuple(k) for k in kinds]
    result = run_study(guarded, runs=tmp_path)
    assert 10 < result.records.metrics["epsilon"].max() <= 20
    sent = result.records.releases
    receivers = sent.groupby("client")["to"].agg(set).tolist()
    everybody = {0, 1, 2, 3, SERVER}
    assert receivers == [everybody - {i} for i in range(4)]


@pytest.mark.parametrize("source", ["seed", "system"])
def test_processes_that_divide_the_clients_choose_alike(tmp_path, source):
    # With secret noise, training differs; who was chosen, and what it cost, does not.
    guarded = study(unit="sample", noise=1.0, noise_source=source)
    alone = run_study(guarded, runs=tmp_path / "alone")
    together = run_divided(
        lambda group: run_study(guarded, runs=tmp_path / "together", group=group), 2
    )[0]
    if source == "seed":
        gap = alone.models() - together.models()
        assert float(gap.abs().max()) < 1e-5  # float32, sums in another order
    last = [r.records.metrics["epsilon"].tolist() for r in (alone, together)]
    assert last[0] == last[1]


def test_another_study_draws_other_noise():
    def means(guarded):
        setup = prepare(guarded, 0, data_of(guarded).federations[0])
        return choosing_of(guarded, 0, setup.read).private_means(
            "means", setup.federation, 9
        )

    one, same, other = (means(study(noise=2.0, delta=d)) for d in (1e-5, 1e-5, 1e-6))
    assert torch.equal(one, same)
    assert float((one - other).abs().mean()) > 1  # of noise of 2.8


def test_secret_noise_of_a_choice_comes_again_in_its_runs_folder_alone(
    tmp_path, monkeypatch
):
    found = []

    def keep(told):
        found.append(told)
        return private_distances(told)

    monkeypatch.setattr(partners, "private_distances", keep)
    guarded = study(unit="sample", noise=2.0, noise_source="system")
    for runs in ("one", "one", "other"):
        result = run_study(guarded, runs=tmp_path / runs)
        shutil.rmtree(result.folder)
    other = study(unit="sample", noise=2.0, noise_source="system", delta=1e-6)
    run_study(other, runs=tmp_path / "one")
    first, again, elsewhere, another = (told.flatten(1) for told in found)
    assert torch.equal(first, again)
    # A client has 314 samples, a half 157; rows differ by noise alone, of 2 / 157 each.
    for told in (elsewhere, another):
        gap = (first - told).std() * 157 / 2
        assert float(gap) == pytest.approx(2**0.5, rel=0.1)  # of 1,024 numbers
    asked = [e.run for e in entries(tmp_path / "one") if e.label == LABEL]
    assert len(asked) == len(set(asked)) == 2  # the same study is charged once


def test_what_later_seeds_tell_is_charged_before_it_is_told(tmp_path, monkeypatch):
    """Weights on a graph are made for every seed before training."""
    told, charged = PartnerMechanism.private_means, list[int]()

    def count(self, *given):
        charged.append(sum(entry.label == LABEL for entry in entries(tmp_path)))
        return told(self, *given)

    monkeypatch.setattr(PartnerMechanism, "private_means", count)
    weights = "mmd(400, 1e9) on graph"
    entry = {**CHOSEN, "weights": weights, "form": "factored"}
    run = {**TABLES["run"], "seeds": [0, 1]}
    tables = {**TABLES, "run": run, "algorithm": [entry], "graph": {"edges": "ring"}}
    guarded = study_of({**tables, "privacy": {"clip": 0.5, "noise": 1.0}})
    run_study(guarded, runs=tmp_path)
    assert charged[:2] == [1, 2]


def test_who_finds_no_partners_pays_for_asking_alone(tmp_path):
    entry = {**CHOSEN, "weights": "mmd(400, 0.02)"}  # which noise leaves undecided
    result = run_study(study(entry, epsilon=30.0, partners=0.25), runs=tmp_path)
    expected = epsilon_of(0.5 * mu_of(30.0, 1e-5), 1e-5)
    spent = result.records.metrics["epsilon"].unique().tolist()
    assert spent == pytest.approx([expected])


def test_of_samples_strangers_know_what_all_were_told_and_no_more(tmp_path):
    """Two and two find each other; what they send each other costs more."""
    guarded = study({**CHOSEN, "weights": "mmd(400)"}, unit="sample", epsilon=20.0)
    sent = run_study(guarded, runs=tmp_path).records.releases
    pairs = sent.set_index(["client", "to"])["epsilon"]
    told = epsilon_of(0.25**0.5 * mu_of(20.0, 1e-5), 1e-5)
    for i in range(4):
        for j in {0, 1, 2, 3, SERVER} - {i}:
            if j == (i + 2) % 4:
                assert told + 0.5 < pairs[i, j] <= 20
            else:  # the grid of dp-accounting is on the safe side
                assert pairs[i, j] == pytest.approx(told, rel=1e-2)


def test_a_budget_that_choosing_would_spend_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"`privacy\.budget` 2 would be spent in the"):
        run_study(study(epsilon=40.0, partners=0.9, budget=2.0), runs=tmp_path)


@pytest.mark.parametrize(
    ("entry", "privacy", "message"),
    [
        (
            {**CHOSEN, "weights": "sliced(40)"},
            {"noise": 1.0},
            "and cannot be made with noise: .* means, moments",
        ),
        (
            CLOSE,
            {"unit": "sample", "epsilon": 10.0, "partners": 0.99},
            "`privacy.partners` must leave something of `privacy.epsilon` 10 for",
        ),
        (CHOSEN, {"epsilon": 0.5}, "squared distances have no gap.*With .privacy."),
        (
            {"name": "fedavg"},
            {"epsilon": 4.0, "partners": 0.5},
            "`privacy.partners` is for weights that are made from data",
        ),
    ],
)
def test_what_cannot_be_chosen_privately_is_refused(tmp_path, entry, privacy, message):
    refuses(message, run_study, study(entry, **privacy), runs=tmp_path)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"noise": 1.0, "partners": 0.5}, "is a share of `privacy.epsilon`, so it"),
        (
            {"epsilon": 1.0, "partners": 1.0},
            "`privacy.partners` must be less than 1, got 1",
        ),
        (
            {"epsilon": 1.0, "partners": 0},
            "`privacy.partners` must be greater than 0, got 0",
        ),
    ],
)
def test_shares_that_are_none_are_refused(privacy, message):
    refuses(message, study, **privacy)


def test_a_plan_counts_what_is_told_as_one_release():
    asked = study(epsilon=30.0, partners=0.6)
    found = plan_privacy(asked)
    assert [cost.releases for cost in found if cost.epsilon == 30.0] == [
        pytest.approx(4)
    ]
    refused = study({**CHOSEN, "weights": "mmd(4000, 1e9)"}, epsilon=30.0)
    found = {cost.epsilon: cost.reason for cost in plan_privacy(refused)}
    assert "must leave every client something" in found[math.inf]
    assert found[30.0] == ""


def test_in_time_weights_must_be_known(tmp_path):
    tables = {**TABLES, "time": {}, "algorithm": [{**CHOSEN, "waits": False}]}
    with pytest.raises(InputError, match=r"and is not counted with \[time\]: with"):
        run_study(study_of({**tables, "privacy": {"noise": 1.0}}), runs=tmp_path)
