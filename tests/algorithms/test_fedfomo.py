"""Claims about FedFomo: a loop over clients and models, and limit cases."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.fedfomo import fedfomo
from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.graphs.families import matchings
from coterie.study.config import study_of
from support.plain_clients import mine
from support.quadratics import EXACT, start
from support.rounds import ACTIVE, drawn, loss, simulate, train
from support.tiny_studies import TABLES

OTHERS = torch.tensor([True, True, False, False, True, True])
OPTIONS = {"lr": 0.2, "steps": 3, "momentum": 0.5, "weight_decay": 0.01}


def after(algorithm, simulation, x, who):
    """The last state and info after rounds with these clients."""
    state, info = train(algorithm, simulation, x, 0)[0][0], {}
    for t, active in enumerate(who, start=1):
        rng = seeds.generator(0, t)
        state, info = algorithm.step(state, simulation.at(t, active), rng)
    return state, info


@pytest.mark.parametrize("models", [2, 5])
def test_fedfomo_is_a_loop_over_clients_and_models(classification, models):
    """With partial participation; five models are those of all others."""
    simulation, x = simulate(classification, 3), start(6, 26)
    who = [None, ACTIVE, OTHERS]
    state, info = after(fedfomo(models=models, **OPTIONS), simulation, x, who)

    rows, mixed = [row.clone() for row in x], 0
    copies = [row.clone().requires_grad_() for row in x]
    optimisers = [
        torch.optim.SGD([row], lr=0.2, momentum=0.5, weight_decay=0.01)
        for row in copies
    ]
    for t, active in enumerate(who, start=1):
        active = torch.ones(6, dtype=torch.bool) if active is None else active
        there = active.nonzero()[:, 0].tolist()
        for i in there:
            copies[i].data.copy_(rows[i])
            for question in range(3):
                optimisers[i].zero_grad()
                batch = drawn(simulation, t, i, question)
                loss(classification, copies[i], batch).backward()
                optimisers[i].step()
        y = [row.detach().clone() for row in copies]
        pairs = matchings(active, models, seeds.generator(0, t))
        new, weights = list(rows), torch.eye(6).double()
        for i in there:
            heard = {i, *pairs[:, i].tolist()}
            w = {}
            for k in heard:
                before = held_out(classification, i, rows[i])
                gain = before - held_out(classification, i, y[k])
                w[k] = max(0.0, gain) / float((y[k] - rows[i]).norm())
            if total := sum(w.values()):
                new[i] = rows[i] + sum(w[k] / total * (y[k] - rows[i]) for k in heard)
                weights[i] = torch.tensor([w.get(k, 0.0) / total for k in range(6)])
                mixed += sum(value > 0 for k, value in w.items() if k != i)
        rows = new
    assert mixed > 0
    assert_close(state.x, torch.stack(rows), **EXACT)
    # Weights of small differences of losses have lost some digits.
    assert_close(info["weights"], weights, rtol=0, atol=1e-7)


def held_out(federation, i, row):
    """The loss of a model on the validation data of client i."""
    return float(loss(federation, row, mine(federation, i, "validation")))


def test_a_client_stays_where_no_model_does_better(classification):
    simulation, x = simulate(classification, 3), torch.zeros(6, 26).double()
    algorithm = fedfomo(lr=1e4)  # such steps make most losses larger
    state, info = after(algorithm, simulation, x, [None])
    y = after(local(lr=1e4), simulation, x, [None])[0].x
    stay = [
        i
        for i in range(6)
        if min(held_out(classification, i, row) for row in y)
        >= held_out(classification, i, x[i])
    ]
    assert stay
    assert torch.equal(state.x[stay], x[stay])
    assert torch.equal(info["weights"][stay], torch.eye(6).double()[stay])


def test_a_model_that_is_not_finite_is_taken_by_nobody(classification):
    simulation, x = simulate(classification), torch.zeros(6, 26).double()
    x[4] = torch.inf
    state, info = after(fedfomo(lr=0.01), simulation, x, [None])
    others = torch.arange(6) != 4
    assert state.x[others].isfinite().all()
    assert not info["weights"][others, 4].any()


def test_a_client_alone_takes_its_own_model_if_that_is_better(classification):
    active = torch.arange(6) == 2
    simulation, x = simulate(classification), torch.zeros(6, 26).double()
    state, _ = after(fedfomo(lr=0.01), simulation, x, [active])
    theirs, _ = after(local(lr=0.01), simulation, x, [active])
    assert_close(state.x, theirs.x, **EXACT)


def test_a_study_without_validation_data_is_refused():
    split = {**TABLES["split"], "validation": 0}
    tables = {**TABLES, "split": split, "algorithm": [{"name": "fedfomo"}]}
    with pytest.raises(InputError, match="above 0 for fedfomo, which chooses by"):
        study_of(tables)
