"""Claims about secure sums: who took part knows its own noise, and takes it off."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import pytest
import torch
from torch.testing import assert_close

from coterie import algorithms
from coterie.checks import InputError
from coterie.privacy import epsilon_of, mu_of
from coterie.privacy.accounting.accounts import by_pairs, by_role, totals
from coterie.privacy.accounting.calibration import noise_for_clients
from coterie.privacy.accounting.ledger import Release
from coterie.privacy.mechanisms import Mechanism, costs_of, make_private, plan_calls
from coterie.privacy.mechanisms.dry_run.doubles import Double
from coterie.privacy.mechanisms.settings import Privacy, privacy_of
from coterie.types import SERVER
from support.private_runs import private_oracle
from support.refusals import refuses


def sum_of(shares, *, sensitivity=2.0, noise=1.0, round=1):
    """A secure sum of clients 0, 1, ... with these shares."""
    shares = torch.tensor(shares, dtype=torch.float64)
    links = torch.stack([torch.arange(len(shares)), torch.full_like(shares, SERVER)], 1)
    links = links.long()
    return Release(
        round, "average", links, sensitivity, noise, summed=True, shares=shares
    )


@pytest.mark.parametrize(
    ("clients", "participant", "others"), [(3, 1.25, 1.83), (40, 1.01, 8.17)]
)
def test_a_sum_that_costs_1_to_the_server_costs_more_to_those_who_took_part(
    clients, participant, others
):
    mu, delta = mu_of(1.0, 1e-5), 1e-5
    # Noise s / sqrt(n) of each makes s of the sum of n, in units of a mean.
    event = sum_of([1.0] * clients, noise=2.0 / mu / math.sqrt(clients))
    found = {
        role: epsilon_of(float(squares.max().sqrt()), delta)
        for role, squares in by_role([event], clients).items()
    }
    assert found["server"] == pytest.approx(1.0)
    assert found["participant"] == pytest.approx(participant, abs=0.005)
    assert found["others"] == pytest.approx(others, abs=0.005)


def test_all_others_leave_the_noise_of_the_client_alone():
    event = sum_of([3.0, 1.0, 0.5, 0.0], noise=0.5)
    # Who has no share tells nothing.
    assert_close(totals([event], 4), torch.tensor([16.0, 16, 16, 0]).double())


@pytest.mark.parametrize("colluders", range(6))
@pytest.mark.parametrize("shares", [[3.0, 1.0, 7.0, 2.0, 2.0, 0.1], [0.2] * 6])
def test_colluders_are_those_whose_noise_is_missed_most(shares, colluders):
    square = torch.tensor(shares, dtype=torch.float64).square()
    found = totals([sum_of(shares, noise=0.5)], 6, colluders=colluders)
    for i in range(6):
        others = [k for k in range(6) if k != i]
        worst = max(
            float(square[i] / square[[k for k in range(6) if k not in some]].sum())
            for some in itertools.combinations(others, colluders)
        )
        assert float(found[i]) == pytest.approx((2 / 0.5) ** 2 * worst, rel=1e-12)


def test_a_server_pays_pairs_by_the_own_share():
    event = sum_of([2.0, 1.0], noise=0.5)
    found = by_pairs([event], 2)
    assert_close(found[:, 2], torch.tensor([16 * 4 / 5, 16 / 5]).double())
    assert not found[:, :2].any()


def test_a_sum_without_shares_is_refused():
    event = sum_of([1.0, 1.0])._replace(shares=None)
    refuses("must have `shares`, got None", totals, [event], 2)


@pytest.mark.parametrize("colluders", [1, 2, 3])
def test_noise_is_calibrated_against_the_server_and_colluders(colluders):
    active = torch.ones(4, dtype=torch.bool)
    algorithm = algorithms.fedavg(torch.tensor([5.0, 3.0, 3.0, 1.0]))
    foreseen = plan_calls(algorithm, [active] * 3, seed=0, label="it")
    how = {"secure": True, "colluders": colluders}
    units = costs_of(algorithm, foreseen, [active] * 3, seed=0, **how)
    noise = noise_for_clients(units, 1.3, 0.5)
    made = make_private(
        algorithm, foreseen, Mechanism(0.5, noise, **how), torch.arange(4)
    )
    state = made.init(foreseen.stage.start, Double(active, ("test", 0)))
    for t in (1, 2, 3):
        state, _ = made.step(state, Double(active, ("test", t)), torch.Generator())
    # Of the client of 5, whose others add most noise in the order 3, 3, 1.
    left = 25 + sum([9, 9, 1][colluders:])
    once = (2 * 0.5) ** 2 * 25 / ((noise / 2) ** 2 * left)
    assert 3 * once == pytest.approx(1.3**2)
    assert float(state.spent.max()) == pytest.approx(1.3**2)
    assert int(state.spent.argmax()) == 0


SHARES = torch.tensor([1.0, 1.0, 1.0])
RUNS = 60


def sums_and_noise():
    """Sums of three rows as the library releases them, and the noise of each client.

    (runs * columns, ) and (runs * columns, 3): the rows are those that are known.
    """
    active = torch.ones(3, dtype=torch.bool)
    foreseen = plan_calls(algorithms.fedavg(SHARES), [active], seed=0, label="it")
    known, drawn = foreseen.stage.shared_start, []
    for number in range(RUNS):
        mechanism = Mechanism(1.0, 2.0, seed=number, secure=True)
        oracle = Double(active, ("test",))
        private = private_oracle(oracle, mechanism, foreseen, known)
        inside = private._oracle
        private.average(SHARES, known)
        drawn.append((inside.seen[-1].rows[0] - known).T)
    noise = torch.cat(drawn).double()
    return noise.sum(1), noise, private.events


def test_an_attack_that_takes_known_noise_off_reaches_what_each_role_is_told():
    seen, noise, events = sums_and_noise()
    squares = by_role(events, 3)
    moved = events[0].sensitivity  # the row of client 0, in the sum of rows
    count, room = len(seen), math.sqrt(math.log(1e5) / len(seen))
    for role, known in (("server", []), ("participant", [1]), ("others", [1, 2])):
        left = seen - noise[:, known].sum(1)
        guess = (left > moved / 2).double().mean(), (left + moved > moved / 2).double()
        reached = float(guess[1].mean() - guess[0])
        allowed = 2 * NormalDist().cdf(float(squares[role][0].sqrt()) / 2) - 1
        assert reached == pytest.approx(allowed, abs=room), (role, count)
        if known:  # more than the server is told: the account must not be smaller
            server = 2 * NormalDist().cdf(float(squares["server"][0].sqrt()) / 2) - 1
            assert reached - room > server


@pytest.mark.usefixtures("unchecked")
def test_colluders_are_for_secure_sums_and_at_least_one():
    assert Privacy(noise=1.0, aggregation="secure").assumed_colluders == 1
    secure = {"noise": 1.0, "aggregation": "secure"}
    assert privacy_of({**secure, "colluders": 3}).assumed_colluders == 3
    refuses(r"needs `privacy.aggregation` secure", Privacy, noise=1.0, colluders=2)
    with pytest.raises(InputError, match="must be at least 1, got 0"):
        Privacy(noise=1.0, aggregation="secure", colluders=0)
    refuses("must be a whole number", privacy_of, {**secure, "colluders": 1.5})
