"""Which model a newcomer gets from every method."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms import ALGORITHMS
from coterie.algorithms.fedavg_finetune import fedavg_finetune
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.collaboration.best_fit import mean_of_partners, training_losses
from coterie.collaboration.weights import collaboration_weights, continuous
from coterie.conformance.cases import Case, Setting, starting_rows
from coterie.conformance.federations import small_federation
from coterie.models import build
from coterie.seeds import generator
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.newcomers import models_for
from coterie.types import Algorithm
from support.newcomer_studies import trained_by
from support.recipes import weights
from support.rounds import STEPS

EVERYBODY = small_federation(8)
TRAINED, LATER = EVERYBODY.select(torch.arange(6)), EVERYBODY.select(torch.arange(6, 8))


def newcomers():
    """The oracle of the last two of all clients, with full gradients."""
    module = build(Setting().module, 0, torch.float64)
    simulation = Simulation(LATER, module, batch_size=0, dtype=torch.float64)
    return simulation.at(4, purpose="welcome")


def test_alone_a_newcomer_gets_what_it_would_have_learned_from_the_beginning():
    state = trained_by("local", TRAINED, **STEPS)
    welcome = Case(ALGORITHMS["local"], STEPS).build(EVERYBODY).welcome
    found = welcome(state, newcomers())
    expected = trained_by("local", EVERYBODY, **STEPS).x[6:]
    # Means of equal numbers, and sums in the order of another number of rows.
    assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.equal(found, state.start[:1].repeat(2, 1))


def test_alone_a_newcomer_begins_at_the_mean_where_starts_differ():
    state = trained_by("local", TRAINED, alike=False)
    assert torch.equal(state.start, starting_rows(TRAINED, Setting()))
    still = state._replace(t=0)
    found = ALGORITHMS["local"]().welcome(still, newcomers())
    assert_close(found, state.start.mean(0).repeat(2, 1))


def test_fedavg_gives_newcomers_the_global_model():
    state = trained_by("fedavg", TRAINED)
    algorithm = Case(ALGORITHMS["fedavg"]).build(EVERYBODY)
    found = algorithm.welcome(state, newcomers())
    assert torch.equal(found, state.x[:2])


def test_fine_tuning_takes_its_steps_on_the_newcomers_data():
    state = trained_by("fedavg_finetune", TRAINED)
    algorithm = fedavg_finetune(EVERYBODY.train.size, tune_steps=3, tune_lr=0.2)
    found = algorithm.welcome(state, newcomers())
    x = state.x[:2]
    for _ in range(3):
        x = x - 0.2 * newcomers().grads(x)
    assert_close(found, x)
    assert not torch.equal(found, state.x[:2])


def blended_by_hand(x, alpha, losses) -> torch.Tensor:
    rows = []
    for of_newcomer in losses.tolist():
        b = of_newcomer.index(min(of_newcomer))
        total = sum(alpha[b].tolist())
        rows.append(sum(float(alpha[b, k]) / total * x[k] for k in range(len(x))))
    return torch.stack(rows)


def test_all_for_one_gives_the_mean_of_whom_the_most_alike_client_learned_with():
    state = trained_by("all_for_one", TRAINED, alike=False)
    algorithm = Case(ALGORITHMS["all_for_one"]).build(EVERYBODY)
    found = algorithm.welcome(state, newcomers())
    alpha = weights("clusters", TRAINED).double()
    losses = training_losses(newcomers(), state.x.expand(2, -1, -1))
    assert_close(found, blended_by_hand(state.x, alpha, losses))
    # Weights on newcomers themselves are nobody's who could have learned.
    given = torch.rand(8, 8, generator=generator("weights"), dtype=torch.float64)
    given[:, 6:] *= 100
    found = ALGORITHMS["all_for_one"](given).welcome(state, newcomers())
    assert_close(found, blended_by_hand(state.x, given[:6, :6], losses))


@pytest.mark.parametrize("rule", ["paper", "normalised"])
def test_adaptive_collaboration_uses_the_weights_that_it_believes_in(rule):
    options = {"criterion": "continuous", "rule": rule}
    state = trained_by("adaptive_all_for_one", TRAINED, alike=False, **options)
    rng = generator("ratios")
    ratio = torch.rand(6, 6, generator=rng, dtype=torch.float64)
    ratio = torch.where(torch.eye(6, dtype=torch.bool), 1.0, ratio)
    state = state._replace(belief=state.belief._replace(ratio=ratio))
    algorithm = Case(ALGORITHMS["adaptive_all_for_one"], options).build(EVERYBODY)
    found = algorithm.welcome(state, newcomers())
    size = EVERYBODY.train.size[:6].double()
    alpha = collaboration_weights(ratio, size, continuous)
    losses = training_losses(newcomers(), state.x.expand(2, -1, -1))
    assert_close(found, blended_by_hand(state.x, alpha, losses))


def test_partners_are_those_of_the_best_fit_and_scale_does_not_matter():
    x = starting_rows(TRAINED, Setting())
    oracle = newcomers()
    alone = mean_of_partners(oracle, x, torch.eye(6, dtype=torch.float64))
    best = training_losses(oracle, x.expand(len(oracle.active), -1, -1)).argmin(1)
    assert_close(alone, x[best])
    alpha = torch.rand(6, 6, generator=generator("alpha"), dtype=torch.float64)
    found = mean_of_partners(oracle, x, alpha)
    assert_close(found, mean_of_partners(oracle, x, 7 * alpha))
    assert not torch.allclose(found, alone)


def test_without_a_welcome_a_newcomer_takes_the_model_that_fits_best():
    x = starting_rows(TRAINED, Setting())
    plain = Algorithm(lambda x: x, lambda state, oracle, rng: (state, {}))
    found = models_for(plain.welcome, None, x, newcomers())
    best = training_losses(newcomers(), x.expand(2, -1, -1)).argmin(1)
    assert torch.equal(found, x[best])
    wrong = plain._replace(welcome=lambda state, oracle: x)
    with pytest.raises(InputError, match=r"shape \(2, 19\), got \(6, 19\)"):
        models_for(wrong.welcome, None, x, newcomers())


def test_newcomers_learn_more_from_those_who_are_like_them(tmp_path):
    """Two clusters of noisy linear models, few samples: alone and average are poor."""
    entries = [
        {"name": "local", "lr": 0.1},
        {"name": "fedavg", "lr": 0.1},
        {"name": "all_for_one", "lr": 0.1},
        {"name": "adaptive_all_for_one", "every": 5, "lr": 0.1},
    ]
    law = {"samples": 12, "spread": 1.0, "noise": 1.0}
    tables = {
        "data": {"name": "linear", "clients": 12, "dimension": 5, **law},
        "split": {"name": "natural"},
        "model": {"name": "linear", "bias": False},
        "run": {"rounds": 30, "newcomers": 4, "seeds": [0, 1], "evaluate_every": 30},
        "algorithm": entries,
    }
    result = run_study(study_of(tables), runs=tmp_path)
    distance = result.records.newcomers.groupby("algorithm")["distance"].mean()
    for ours in ("all_for_one", "adaptive_all_for_one"):
        for theirs in ("local", "fedavg"):
            assert distance[ours] < 0.7 * distance[theirs], distance
