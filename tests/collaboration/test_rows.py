"""Claims about row-wise functions of some rows."""

from __future__ import annotations

import pytest
import torch

from coterie.collaboration import rows

N, D = 7, 5


@pytest.mark.parametrize("inactive", [[], [0, 4], list(range(N))])
@pytest.mark.parametrize("values", [1, 2 * D, 1000], ids="a piece of {}".format)
def test_rows_change_where_clients_are_active_whatever_a_piece_holds(
    monkeypatch, values, inactive
):
    monkeypatch.setattr(rows, "_PIECE", {"cpu": values})
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, N, D, generator=rng).unbind(0)
    kept, active = x.clone(), torch.ones(N, dtype=torch.bool)
    active[inactive] = False
    found = rows.change_rows(active, torch.mul, x, y)
    for i in range(N):
        assert torch.equal(found[i], x[i] * y[i] if active[i] else x[i])
    assert torch.equal(x, kept)
