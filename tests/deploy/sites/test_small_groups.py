"""No sum shows the rows of too few members, also within a group."""

from __future__ import annotations

import pytest
import torch

from coterie.checks import InputError
from coterie.clients.groups import average_rows
from coterie.deploy.sites.hub import HubSettings
from coterie.deploy.sites.link import RunOver, SiteGroup
from support.sites import run_sites, tables_of


class Others:
    """The verbs of a member whose sums have what the others send added."""

    def __init__(self, *more) -> None:
        self.more, self.asked = list(more), []

    def sum(self, row):
        self.asked.append(row.copy())
        return row + self.more.pop(0)

    def mail(self, parts):
        raise AssertionError("no mail is sent")

    def call(self, parcel):
        raise AssertionError("nothing else is asked")


def group_with(verbs: Others, least: int = 3) -> SiteGroup:
    group = SiteGroup(0, 4)
    group.verbs, group.least = verbs, least
    return group


ROW = torch.tensor([[1.0, 2.0]])


@pytest.mark.parametrize("others", [[0, 1], [1, 3]])
def test_a_group_of_too_few_members_is_refused_before_rows_leave(others):
    verbs = Others(torch.tensor(others).numpy())
    shares = torch.tensor([[1.0], [0.0]])  # this member is in the first group
    with pytest.raises(InputError, match="would show their rows"):
        average_rows(group_with(verbs), shares, ROW)
    assert [row.tolist() for row in verbs.asked] == [[1, 0]]  # counts, and no row


def test_large_and_empty_groups_are_averaged():
    rows = torch.zeros(2, 3)
    verbs = Others(torch.tensor([2, 0]).numpy(), rows.numpy())
    found, total = average_rows(group_with(verbs), torch.tensor([[1.0], [0.0]]), ROW)
    assert torch.equal(found, torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    assert total.tolist() == [[1.0], [0.0]]


def test_a_member_without_a_share_in_an_average_is_refused():
    verbs = Others()
    with pytest.raises(InputError, match="every present member must have a share"):
        average_rows(group_with(verbs), torch.tensor([0.0]), ROW)
    assert not verbs.asked


def test_one_average_costs_no_further_sum_and_rows_in_the_clear_none_at_all():
    one = Others(torch.zeros(3).numpy())
    average_rows(group_with(one), torch.tensor([1.0]), ROW)
    clear = Others(torch.zeros(2, 3).numpy())
    average_rows(group_with(clear, least=0), torch.tensor([[1.0], [0.0]]), ROW)
    assert len(one.asked) == len(clear.asked) == 1


def test_a_method_that_makes_small_groups_ends_with_the_reason(tmp_path):
    tables = tables_of("""
    [run]
    rounds = 2
    seeds = [3]
    batch_size = 8
    [[algorithm]]
    name = "ifca"
    lr = 0.5
    clusters = 3
    """)
    with pytest.raises((InputError, RunOver), match="would show their rows"):
        run_sites(tmp_path, tables, HubSettings(patience=3.0))
