"""Claims about which of several models fits a client."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from coterie.clients.simulation import Simulation
from coterie.collaboration.best_fit import best_fit, training_losses
from coterie.conformance.cases import Setting, starting_rows
from coterie.conformance.federations import small_federation
from coterie.models import build

ACTIVE = torch.tensor([True, False, True, True, True, True])


def simulation() -> Simulation:
    federation = small_federation()
    module = build(Setting().module, 0, torch.float64)
    return Simulation(federation, module, batch_size=2, dtype=torch.float64)


def test_losses_are_those_of_the_whole_training_part():
    clients = simulation()
    candidates = starting_rows(clients.federation, Setting())[:3].expand(6, -1, -1)
    found = training_losses(clients.at(1), candidates)
    for c, candidate in enumerate(candidates[0]):
        everywhere = candidate.expand(6, -1).contiguous()
        assert_close(found[:, c], clients.evaluate(everywhere, "train")["loss"])


def test_the_best_fit_has_least_loss_and_inactive_clients_are_not_asked():
    clients = simulation()
    candidates = starting_rows(clients.federation, Setting())[:3].expand(6, -1, -1)
    losses = training_losses(clients.at(1), candidates)
    assert torch.equal(best_fit(clients.at(1), candidates), losses.argmin(1))
    some = training_losses(clients.at(1, ACTIVE), candidates)
    assert some[1].isnan().all()
    assert_close(some[ACTIVE], losses[ACTIVE])
    assert best_fit(clients.at(1, ACTIVE), candidates)[1] == 0
