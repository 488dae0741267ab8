"""Claims about budgets: what nobody spends, whoever else stays away."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie import algorithms, seeds
from coterie.privacy import mechanisms, mu_of
from coterie.privacy.accounting.calibration import Limits, noise_for_clients
from coterie.privacy.mechanisms.dry_run.doubles import Double
from support.private_runs import own_budgets, private_oracle

CLIP = 0.5


def spent_without_data(sizes, actives, mu: float, own):
    """The last state of FedAvg with secure sums, noise for mu, and own budgets."""
    n, algorithm = len(sizes), algorithms.fedavg(torch.tensor(sizes).double())
    foreseen = mechanisms.plan_calls(algorithm, actives, seed=0, label="it")
    units = mechanisms.costs_of(algorithm, foreseen, actives, seed=0, secure=True)
    noise = noise_for_clients(units, mu, CLIP)
    made = mechanisms.make_private(
        algorithm,
        foreseen,
        mechanisms.Mechanism(CLIP, noise, secure=True),
        torch.arange(n),
        limits=Limits(of_each=own),
        costs=[(2 * CLIP / noise) ** 2 * cost for cost in units],
    )
    everybody = torch.ones(n, dtype=torch.bool)
    state = made.init(foreseen.stage.start, Double(everybody, ("test", 0)))
    for t, active in enumerate(actives, start=1):
        oracle = Double(active, ("test", t))
        state, _ = made.step(state, oracle, torch.Generator())
    return state


@pytest.mark.parametrize("budgets", [{0: 0.5}, {0: 0.5, 1: 2.0}])
def test_with_secure_sums_nobody_pays_for_those_who_stay_away(budgets):
    # The largest share counts more without the other one of 200.
    squares = {client: mu_of(e, 1e-5) ** 2 for client, e in budgets.items()}
    own = own_budgets(squares, 4).of_each
    everybody, mu = torch.ones(4, dtype=torch.bool), mu_of(4.0, 1e-5)
    state = spent_without_data([200, 200, 20, 20], [everybody] * 10, mu, own)
    assert (state.spent <= own * (1 + 1e-9)).all()
    # Who stays goes on to the end, and spends what was planned, or less.
    assert state.stopped == 0 and len(state.ledger) == 10
    # In units of (2 C / s)^2, of m clients: the first with the server and the other of
    # 200 against it, m 200^2 / (200^2 + 2 20^2), is what noise was found for.
    unit = mu**2 / 10 / (4 * 200**2 / (200**2 + 2 * 20**2))
    with_200 = sum(
        len(event.links) == 3 for event in mechanisms.events_of(state.ledger)
    )
    assert with_200 == (3 if 1 in budgets else 10)
    expected = unit * (with_200 * 3 / 2 + (10 - with_200) * 2)  # of 20, and 20 is left
    assert_close(state.spent[2:], torch.tensor(expected).double().repeat(2))


@pytest.mark.parametrize("seed", range(25))
def test_with_any_sizes_and_budgets_nobody_exceeds_its_own_or_the_epsilon(seed):
    rng = seeds.generator("test", "budgets", seed)
    n, rounds, mu = int(torch.randint(3, 9, (), generator=rng)), 10, 1.3
    sizes = 10 ** torch.randint(1, 4, (n,), generator=rng)
    own = mu**2 * torch.rand(n, generator=rng, dtype=torch.float64)
    own[torch.rand(n, generator=rng) < 0.5] = math.inf
    share = 0.8 if seed % 5 == 0 else 1.0
    actives = [torch.rand(n, generator=rng) < share for _ in range(rounds)]
    for active in actives:
        active[int(torch.randint(n, (), generator=rng))] = True
    state = spent_without_data(sizes.tolist(), actives, mu, own)
    assert (state.spent <= own.clamp(max=mu**2) * (1 + 1e-6)).all()
    # What the ledger says of every sum: it moves by 2 C times the own share, and has
    # the noise of all who are in it but the largest of the others.
    paid = torch.zeros(n, dtype=torch.float64)
    for event in mechanisms.events_of(state.ledger):
        who, squares = event.links[:, 0].tolist(), sizes.double().square()
        for i in who:
            others = sorted(float(squares[k]) for k in who if k != i)
            noise = event.noise**2 * (float(squares[i]) + sum(others[:-1]))
            paid[i] += (2 * CLIP) ** 2 * squares[i] / noise
    assert_close(state.spent, paid)


def test_who_is_left_in_a_secure_sum_adds_the_noise_that_the_ledger_has():
    active, sizes = torch.ones(4, dtype=torch.bool), torch.tensor([8.0, 8.0, 8.0, 1.0])
    algorithm = algorithms.fedavg(sizes)
    foreseen = mechanisms.plan_calls(algorithm, [active], seed=0, label="it")
    mechanism = mechanisms.Mechanism(1.0, 2.0, secure=True)
    found = []
    for number in range(40):
        private = private_oracle(
            Double(active, ("test",)),
            mechanism._replace(seed=number),
            foreseen,
            foreseen.stage.shared_start,
            refuses=torch.tensor([True, False, False, False]),
        )
        inside = private._oracle
        private.average(sizes, foreseen.stage.shared_start)
        found.append(inside.seen[-1].rows[0] - foreseen.stage.shared_start)
    noise = torch.stack(found)[:, 1:]
    # With one of 8 against it, the sum tells of a client of 8 as much as 64 / 129 of
    # all four, and 64 / 65 of the three, each time that of m rows with noise s.
    raised = math.sqrt((3 * 64 / 65) / (4 * 64 / 129))
    expected = 2.0 * raised / math.sqrt(3)
    assert private.events[0].noise == pytest.approx(expected)
    count = noise.numel()
    assert abs(float(noise.std()) / expected - 1) < 4 / math.sqrt(2 * count)
