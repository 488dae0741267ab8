"""Claims about noise on the grid, and about the ledger of a site."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections import Counter

import numpy as np
import pytest
import torch

from coterie.checks import InputError, TrainingError
from coterie.deploy.sites import noise
from coterie.deploy.sites.masks import from_grid, grid_for, to_grid
from coterie.deploy.sites.noise import (
    BudgetSpent,
    Charge,
    SiteLedger,
    epsilon_after,
    privacy_at_site,
    with_due_noise,
)
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.accounting.accounts import remaining, totals
from coterie.privacy.accounting.ledger import Release
from coterie.privacy.mechanisms.noise import DueNoise, SecretStream
from coterie.privacy.mechanisms.settings import Privacy
from coterie.types import SERVER

GRID = grid_for(2.0**32, 64.0, 8)


def stream(key: int = 0) -> SecretStream:
    """Bits that are the same in every run of the tests."""
    return SecretStream(key.to_bytes(32, "big"))


def private_row(values, share: float, due: DueNoise, key: int):
    """A row with its share, as `average` sends it, with noise."""
    row = to_grid(np.append(np.asarray(values) * share, share), GRID)
    return with_due_noise(row, share, due, GRID, stream(key))


def test_the_noise_of_a_sum_is_what_was_charged_and_a_little_more():
    shares = (3.0, 1.0, 2.0, 2.0)
    rows = [
        private_row(np.zeros(20_000), p, DueNoise(0.5, 2.0, shares, k, 8.0), k)
        for k, p in enumerate(shares)
    ]
    total = from_grid(sum(rows[1:], rows[0].copy()), GRID)
    assert total[-1] == 8.0  # shares have no noise
    charged = 0.5 * math.hypot(*shares)
    found = total[:-1].std() / charged
    assert abs(found - 1 - 2.0**-10) < 5 / math.sqrt(2 * 20_000)


def test_noise_follows_the_share_of_the_member():
    """Shares may have any unit: only those of the others relative to it count."""
    due = DueNoise(0.5, 2.0, (0.25, 0.5, 0.25), 1, 8.0)
    row = private_row(np.zeros(20_000), 10.0, due, 0)
    assert abs(from_grid(row, GRID)[:-1].std() / 5.0 - 1) < 0.02


def test_every_row_has_noise_of_its_own():
    due = DueNoise(0.5, 2.0, (1.0, 1.0, 1.0), 0, 8.0)
    secret = stream()
    row = to_grid(np.append(np.zeros(1000), 1.0), GRID)
    first, second = (with_due_noise(row, 1.0, due, GRID, secret) for _ in range(2))
    assert (first[:-1] == second[:-1]).mean() < 0.01
    assert not row[:-1].any()  # the argument is not changed


def test_a_grid_that_is_too_coarse_for_the_charge_is_refused():
    coarse = grid_for(2.0**8, 64.0, 8)
    due = DueNoise(0.5, 2.0, (1.0, 1.0, 1.0), 0, 8.0)
    row = to_grid(np.append(np.zeros(1000), 1.0), coarse)
    with pytest.raises(InputError, match="set a scale"):
        with_due_noise(row, 1.0, due, coarse, stream())
    with pytest.raises(InputError, match="share of a private row must be positive"):
        with_due_noise(row, 0.0, due, coarse, stream())


@pytest.mark.parametrize("colluders", [1, 2])
def test_the_plan_covers_every_sum_that_is_allowed(colluders):
    """The charge of all N members is at least that of any set of `least` or more."""
    shares = torch.tensor([3.0, 1.0, 2.0, 2.5, 0.5])
    members, least, noise_of_each = 5, 4, 0.7
    settings = Privacy(noise=1.0, noise_source="system", aggregation="secure")
    settings = Privacy(**{**vars(settings), "colluders": colluders})
    planned = privacy_at_site(settings, members, least).assumed_colluders
    assert planned == colluders + 1
    most = float(remaining(shares, planned).max()) * (2.0 / noise_of_each) ** 2
    for absent in (None, *range(members)):
        who = [k for k in range(members) if k != absent]
        links = torch.tensor([[k, SERVER] for k in who])
        release = Release(
            1,
            "average",
            links,
            2.0,
            noise_of_each,
            summed=True,
            shares=shares[who].double(),
        )
        assert (
            float(totals([release], members, colluders=colluders).max()) <= most + 1e-12
        )


def test_settings_that_cannot_protect_a_site_are_refused():
    with pytest.raises(InputError, match="noise from a seed protects nobody"):
        privacy_at_site(Privacy(noise=1.0), 5, 3)
    local = Privacy(noise=1.0, noise_source="system")
    assert privacy_at_site(local, 5, 3) is local
    most = Privacy(noise=1.0, noise_source="system", aggregation="secure", colluders=3)
    with pytest.raises(InputError, match=r"less than `sites.least_members`, 3"):
        privacy_at_site(most, 5, 3)


# The ledger.


def charge(attempt: int = 1, cost=0.25, step: int = 1) -> Charge:
    """What an attempt at round 1 may cost."""
    return Charge("run", step, attempt, "fedavg, seed 0, round 1", cost)


STEPS = Counter({(1.5, 0.1, False): 3, (2.0, 1.0, True): 1})


def test_a_ledger_is_read_again_as_it_was_written(tmp_path):
    path = tmp_path / "own" / "ledger.jsonl"
    first = SiteLedger(path, 1e-5)
    for one in (charge(), charge(2), charge(cost=math.inf), charge(3, STEPS)):
        first.charge(one)
    assert SiteLedger(path, 1e-5).charges == first.charges
    assert path.stat().st_mode & 0o777 == 0o600


def test_aborted_attempts_are_charged_like_others(tmp_path):
    ledger = SiteLedger(tmp_path / "ledger", 1e-5)
    for attempt in (1, 2, 3):
        ledger.charge(charge(attempt))
    assert ledger.epsilon == epsilon_of(math.sqrt(0.75), 1e-5)


def test_a_site_stops_before_its_own_budget(tmp_path):
    path = tmp_path / "ledger"
    budget = epsilon_of(math.sqrt(0.5), 1e-5)
    ledger = SiteLedger(path, 1e-5, budget)
    ledger.charge(charge(1))
    ledger.charge(charge(2))  # exactly the budget
    with pytest.raises(BudgetSpent, match="nothing of it was sent"):
        ledger.charge(charge(3))
    again = SiteLedger(path, 1e-5, budget)  # and after a restart
    assert len(again.charges) == 2
    with pytest.raises(BudgetSpent, match="could raise epsilon to"):
        again.charge(charge(1, 1e-3))


def test_charges_of_two_runs_at_once_add_up(tmp_path):
    path = tmp_path / "ledger"
    budget = epsilon_of(math.sqrt(0.5), 1e-5)
    one, two = (SiteLedger(path, 1e-5, budget) for _ in range(2))
    one.charge(charge(1))
    two.charge(charge(1))
    for ledger in (one, two):
        with pytest.raises(BudgetSpent):
            ledger.charge(charge(2))


def test_epsilons_of_both_units_add(tmp_path):
    whole, single = [charge()], [charge(2, STEPS)]
    both = epsilon_after(whole + single, 1e-5)
    assert both == epsilon_after(whole, 5e-6) + epsilon_after(single, 5e-6)
    assert epsilon_after([], 1e-5) == 0.0
    assert epsilon_after([charge(cost=math.inf)], 1e-5) == math.inf


def test_a_line_that_was_cut_off_was_never_acted_on(tmp_path):
    path = tmp_path / "ledger"
    SiteLedger(path, 1e-5).charge(charge())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    ledger = SiteLedger(path, 1e-5)
    assert ledger.charges == [charge()]
    ledger.charge(charge(2))
    assert SiteLedger(path, 1e-5).charges == [charge(), charge(2)]


@pytest.mark.parametrize(
    "line", [b"{}\n", b"not json\n", b'{"mu2": -1}\n', b'{"mu2": NaN}\n', b"\n"]
)
def test_a_damaged_ledger_is_refused(tmp_path, line):
    path = tmp_path / "ledger"
    SiteLedger(path, 1e-5).charge(charge())
    path.write_bytes(line + path.read_bytes())
    with pytest.raises(InputError, match="is damaged"):
        SiteLedger(path, 1e-5)


def test_nothing_is_sent_if_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    ledger = SiteLedger(path, 1e-5)
    ledger.charge(charge())
    true = os.write
    monkeypatch.setattr(noise.os, "write", lambda file, line: true(file, line[:10]))
    with pytest.raises(TrainingError, match="so nothing is sent"):
        ledger.charge(charge(2))
    monkeypatch.undo()
    assert SiteLedger(path, 1e-5).charges == [charge()]


def _charge_many(path, count) -> None:
    ledger = SiteLedger(path, 1e-5)
    for attempt in range(count):
        ledger.charge(charge(attempt + 1, step=os.getpid()))


def test_two_processes_lose_no_charge(tmp_path):
    path = tmp_path / "ledger"
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_charge_many, args=(path, 20)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(20)
        assert one.exitcode == 0
    assert len(set(SiteLedger(path, 1e-5).charges)) == 40
