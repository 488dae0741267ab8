"""The ledger only grows, and what was read from it stays as it was."""

import torch

from coterie.privacy import Exchange, Input, Ledger, Release


def test_what_was_read_from_a_ledger_does_not_change_when_it_grows() -> None:
    ledger = Ledger(2)
    everybody = torch.ones(2, dtype=torch.bool)
    links = torch.tensor([[0, 1], [1, 0]])
    ledger.append(Input(0, everybody, 1.0, 2.0))
    read = ledger.events
    ledger.append(Exchange(0, links, torch.full((2, 2), 0.5)))
    ledger.append(Release(1, "average", links, 1.0, 2.0))
    assert [type(event) for event in read] == [Input]
    assert [type(event) for event in ledger] == [Input, Exchange, Release]
    assert len(ledger) == 3
