"""A table is refused when it is made, in one sentence, where it could not be used."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie import Simulation, Table, federate, models
from support.refusals import refusal

GOOD = {
    "name": "mine",
    "features": torch.ones(6, 2),
    "targets": torch.ones(6),
    "task": "regression",
    "outputs": 1,
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": [[1.0, 2.0]] * 6}, "`features` of a table must be a tensor, got"),
        ({"features": torch.ones(())}, "`features` of a table must have a row"),
        ({"features": torch.ones(0, 2)}, "`features` of a table must have a row"),
        ({"targets": None}, "`targets` of a table must be a tensor, got None"),
        ({"targets": torch.ones(5)}, "`targets` of a table must have 6 rows"),
        ({"group": torch.zeros(7).long()}, "`group` of a table must have 6 rows"),
        ({"group": torch.zeros(6)}, "`group` of a table must hold the client of each"),
        (
            {"group": -torch.ones(6).long()},
            "whole number of at least 0, got torch.int64",
        ),
        ({"is_test": [False] * 6}, "`is_test` of a table must be a tensor or None"),
        ({"task": 3}, "`task` of a table must be text, got 3"),
        ({"outputs": 0}, "`outputs` must be at least 1, got 0"),
        ({"outputs": "two"}, "`outputs` must be a whole number, got 'two'"),
    ],
)
def test_what_does_not_fit_is_refused_when_a_table_is_made(unchecked, change, said):
    assert len(Table(**GOOD).targets) == 6
    assert said in refusal(Table, **{**GOOD, **change})


def test_images_may_lie_in_memory_in_any_order():
    """Those of a file with channels last could not go through GroupNorm."""
    images = torch.randn(24, 8, 8, 3).permute(0, 3, 1, 2)
    layers = nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(192, 2)
    module, rows = nn.Sequential(*layers), []
    for features in (images, images.contiguous()):
        table = Table("i", features, torch.arange(24) % 2, "classification", 2)
        role = torch.tensor([0] * 6 + [1, 2]).repeat(3)
        clients = Simulation(federate(table, torch.arange(24) // 8, role), module)
        x = models.ravel(module).expand(3, -1).clone()
        rows.append(clients.at(1).grads(x))
    torch.testing.assert_close(*rows)
