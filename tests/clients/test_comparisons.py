"""Claims about comparisons of gradients: halves, few samples, and what is unbiased."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.data.federation import Table, federate
from support.plain_clients import EXACT, gradient, mine
from support.simulated import rows, simulate, simulated


def test_a_comparison_is_made_of_the_gradients_of_two_halves(classification):
    simulation, x = simulated(classification)
    seen = simulation.at(3).compare(x)
    stream = simulation.at(3).key("compare", 0)
    first, second, used = simulation.samples.halves(torch.arange(6), stream, None)
    assert seen.samples.tolist() == used.tolist() == [7, 4, 9, 5, 8, 6]
    halves = []
    for k in range(6):
        one = first.index[k][first.weight[k] > 0]
        two = second.index[k][second.weight[k] > 0]
        # Disjoint, half each, and together all training samples of the client.
        assert len(one) == len(mine(classification, k)) // 2
        both = torch.cat([one, two]).sort().values
        assert torch.equal(both, mine(classification, k).sort().values)
        halves.append((one, two))
    for i in range(6):
        a_i, b_i = (gradient(classification, x[i], half) for half in halves[i])
        assert_close(seen.own[i], a_i @ b_i, **EXACT)
        p_i = gradient(classification, x[i], mine(classification, i))
        assert_close(seen.own_pooled[i], p_i.square().sum(), **EXACT)
        one, two = (len(half) for half in halves[i])
        variance = (a_i - b_i).square().sum() / (1 / one + 1 / two)
        assert_close(seen.variance[i], variance, **EXACT)
        for k in range(6):
            a_k, b_k = (gradient(classification, x[i], half) for half in halves[k])
            u, v = a_i - a_k, b_i - b_k
            assert_close(seen.cross[i, k], u @ v, **EXACT)
            # What the paper's estimator takes: gradients of all samples, however they
            # were halved.
            p_k = gradient(classification, x[i], mine(classification, k))
            assert_close(seen.pooled[i, k], (p_i - p_k).square().sum(), **EXACT)
            if i != k:  # the diagonal tells nothing that `variance` does not
                noise = (a_i - b_i) @ (a_k - b_k)
                assert_close(seen.noise[i, k], noise, **EXACT)
    assert seen.known.all()


def test_halves_differ_between_rounds_and_clients_but_not_between_runs(classification):
    simulation = simulate(classification)
    everybody = torch.arange(6)
    one, _, _ = simulation.samples.halves(everybody, 1, None)
    again, _, _ = simulation.samples.halves(everybody, 1, None)
    other, _, _ = simulation.samples.halves(everybody, 2, None)
    assert torch.equal(one.index, again.index)
    assert not torch.equal(one.index, other.index)
    alone, _, _ = simulation.samples.halves(torch.tensor([3]), 1, None)
    kept = one.index[3][one.weight[3] > 0]
    assert torch.equal(alone.index[0][alone.weight[0] > 0], kept)


def test_a_comparison_with_few_samples_uses_so_many(classification):
    simulation = simulate(classification)
    first, second, used = simulation.samples.halves(torch.arange(6), 1, 6)
    assert used.tolist() == [6, 4, 6, 5, 6, 6]
    assert (first.weight > 0).sum(1).tolist() == [3, 2, 3, 2, 3, 3]
    assert (second.weight > 0).sum(1).tolist() == [3, 2, 3, 3, 3, 3]
    seen = simulation.at(1).compare(rows(simulation), samples=6)
    assert seen.samples.tolist() == used.tolist()


def test_comparisons_know_only_pairs_of_active_clients(classification):
    active = torch.tensor([True, False, True, True, True, False])
    simulation, x = simulated(classification)
    some = simulation.at(1, active).compare(x)
    everybody = simulation.at(1).compare(x)
    pair = active[:, None] & active
    assert torch.equal(some.known, pair)
    assert_close(some.cross, everybody.cross * pair, **EXACT)
    assert_close(some.own, everybody.own * active, **EXACT)
    assert_close(some.noise, everybody.noise * pair, **EXACT)
    assert (some.samples[~active] == 0).all()


@pytest.mark.parametrize("loop", [False, True])
def test_only_named_pairs_are_compared_counted_and_paid_for(classification, loop):
    active = torch.tensor([True, False, True, True, True, True])
    pairs = torch.zeros(6, 6, dtype=torch.bool)
    for i, k in ((0, 1), (0, 2), (2, 0), (3, 4), (5, 5)):
        pairs[i, k] = True
    simulation, x = simulated(classification, loop=loop)
    oracle = simulation.at(1, active)
    some, everybody = oracle.compare(x, pairs=pairs), simulation.at(1).compare(x)
    asked = pairs & active[:, None] & active
    assert torch.equal(some.known, asked | torch.diag(active))
    for name in ("cross", "pooled", "noise"):
        found, whole = getattr(some, name), getattr(everybody, name)
        assert_close(found, whole * asked.fill_diagonal_(False), **EXACT)
    for name in ("own", "own_pooled", "variance", "samples"):
        found, whole = getattr(some, name), getattr(everybody, name)
        assert_close(found, whole * active, **EXACT)
    links = torch.cat([sent.links for sent in oracle.sent]).tolist()
    # The reader's model goes to whom it asks.
    assert sorted(links) == [[0, 2], [2, 0], [3, 4]]
    assert [sent.values for sent in oracle.sent] == [3 * x.shape[1]]
    # Both halves of one's own, and those for each reader: 0 and 2 and 4 have one.
    times = torch.tensor([2, 0, 2, 1, 2, 1])
    assert_close(oracle.gradients, (times * classification.train.size).double())


def test_comparing_needs_two_samples():
    table = Table("t", torch.ones(7, 2), torch.zeros(7), "regression", 1)
    owner = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    role = torch.tensor([0, 0, 1, 2, 0, 1, 2])
    simulation, x = simulated(federate(table, owner, role))
    with pytest.raises(InputError, match=r"two training samples.*client 1 has one"):
        simulation.at(1).compare(x)
    with pytest.raises(InputError, match="`samples` must be at least 2, got 1"):
        simulation.at(1).compare(x, samples=1)


def test_products_of_halves_are_unbiased_and_squared_norms_are_not(regression):
    """Against the closed forms of sampling without replacement.

    Of the n samples of a client with single-sample gradients of mean mu and total
    variance s, two halves of m samples have E<a, b> = |mu|^2 - s/(n-1), since two
    different samples have covariance -s/(n-1); and E|(a+b)/2|^2 is the usual
    |mu|^2 + s/m (n-m)/(n-1). As n grows these are the spec's |mu|^2 and |mu|^2 + s/m.
    """
    simulation, x = simulated(regression)
    clients, m, repetitions = [0, 2, 4], 4, 150
    active = torch.zeros(6, dtype=torch.bool)
    active[clients] = True
    seen = [simulation.at(t, active).compare(x, samples=m) for t in range(repetitions)]
    split = torch.stack([s.cross for s in seen])
    plain = torch.stack([s.pooled for s in seen])
    own = torch.stack([s.own for s in seen])
    own_plain = torch.stack([s.own_pooled for s in seen])

    def moments(k: int, row: torch.Tensor) -> tuple[torch.Tensor, float, int]:
        index = mine(regression, k)
        g = torch.stack(
            [gradient(regression, row, index[[j]]) for j in range(len(index))]
        )
        return g.mean(0), float((g - g.mean(0)).square().sum(1).mean()), len(index)

    def agree(values: torch.Tensor, expected: float) -> None:
        # Four standard errors of the mean, level 6e-5.
        error = 4 * float(values.std()) / repetitions**0.5
        assert abs(float(values.mean()) - expected) < error

    for i in clients:
        mu_i, s_i, n_i = moments(i, x[i])
        agree(own[:, i], float(mu_i @ mu_i) - s_i / (n_i - 1))
        larger = s_i / m * (n_i - m) / (n_i - 1)
        agree(own_plain[:, i], float(mu_i @ mu_i) + larger)
        for k in set(clients) - {i}:
            mu_k, s_k, n_k = moments(k, x[i])
            apart = float((mu_i - mu_k).square().sum())
            agree(split[:, i, k], apart - s_i / (n_i - 1) - s_k / (n_k - 1))
            bias = s_i / m * (n_i - m) / (n_i - 1) + s_k / m * (n_k - m) / (n_k - 1)
            agree(plain[:, i, k], apart + bias)
