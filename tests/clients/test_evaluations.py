"""Claims about evaluations of models on the parts of clients."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.testing import assert_close

from coterie import models
from coterie.clients.simulation import Simulation
from coterie.data.federation import Table, federate
from coterie.models import Objective, OfClient
from support.plain_clients import EXACT, mine
from support.simulated import REAL, module, rows, simulate, simulated


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_evaluation_equals_a_loop_over_clients_with_modules(classification, name):
    simulation, x = simulated(classification)
    found = simulation.evaluate(x, name)
    for k in range(6):
        index = mine(classification, k, name)
        twin = models.with_row(module(classification), x[k])
        outputs = twin(classification.features[index]).detach()
        truth = classification.targets[index]
        loss = nn.functional.cross_entropy(outputs, truth)
        right = (outputs.argmax(1) == truth).to(REAL).mean()
        assert_close(found["loss"][k], loss, **EXACT)
        assert_close(found["accuracy"][k], right, **EXACT)


def test_evaluation_of_long_parts_is_merged_from_pieces(classification, monkeypatch):
    x = rows(simulate(classification))
    whole = simulate(classification).evaluate(x, "train")
    monkeypatch.setattr("coterie.clients.kernels._EVALUATED_AT_ONCE", 2)
    pieces = simulate(classification).evaluate(x, "train")
    assert_close(pieces, whole, **EXACT)


@pytest.mark.parametrize("at_once", [2, 512])
def test_auc_of_a_client_is_taken_over_its_whole_part(monkeypatch, at_once):
    monkeypatch.setattr("coterie.clients.kernels._EVALUATED_AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(1)
    features = torch.randn(30, 2, generator=rng, dtype=REAL)
    labels = (features.sum(1) > 0).long()
    labels[:7] = 1  # all of the first client's training data
    table = Table("t", features, labels, "binary", 1)
    owner = torch.tensor([0] * 9 + [1] * 21)
    role = torch.tensor([0] * 7 + [1, 2] + [0] * 17 + [1, 1, 2, 2])
    net = models.build(lambda: models.linear((2,), 1), 0, REAL)
    federation = federate(table, owner, role)
    simulation = Simulation(federation, net, dtype=REAL)
    x = torch.randn(2, 3, generator=rng, dtype=REAL)
    found = simulation.evaluate(x, "train")
    index = mine(federation, 1)
    outputs = models.with_row(net, x[1])(features[index])[:, 0].detach()
    expected = roc_auc_score(labels[index], outputs)
    assert float(found["auc"][1]) == pytest.approx(expected, abs=1e-12)
    assert found["auc"][0].isnan()
    assert found["accuracy"].isfinite().all() and found["loss"].isfinite().all()


def test_an_objective_of_ones_own_is_minimised_and_measured(regression):
    def absolute(outputs, targets):
        return (outputs[:, 0] - targets).abs()

    def largest(outputs, targets):
        return absolute(outputs, targets).max()

    own = Objective(absolute, {"largest": OfClient(largest)}, higher_is_better=False)
    simulation = simulate(regression, objective=own, batch_size=0)
    assert simulation.objective is own
    x = rows(simulation)
    g, found = simulation.at(1).grads(x), simulation.evaluate(x, "train")
    for k in range(6):
        index = mine(regression, k)
        features, targets = regression.features[index], regression.targets[index]
        error = features @ x[k] - targets
        assert_close(g[k], error.sign() @ features / len(index), **EXACT)
        assert_close(found["loss"][k], error.abs().mean(), **EXACT)
        assert_close(found["largest"][k], error.abs().max(), **EXACT)
