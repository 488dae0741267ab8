"""Claims about personal columns: they never leave their client."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.fedavg import fedavg
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.engine.rounds import init_oracle
from coterie.types import Numbers, traffic_of
from support.plain_clients import EXACT, draws, gradient, mine
from support.simulated import REAL, in_round, rows, simulate, simulated
from support.six_clients import SHARES, SOME, D, N, everybody_or_some, who

HEAD = torch.arange(D) >= 39  # weights (2, 3) and biases of the last layer
HOMES = {"head": HEAD, "body": ~HEAD, "mixed": torch.arange(D) % 3 == 0}

for_homes = pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)


def weights() -> torch.Tensor:
    rng = torch.Generator().manual_seed(2)
    dense = torch.rand(N, N, generator=rng, dtype=REAL)
    dense[0, 3] = dense[2, 1] = dense[5, 5] = 0
    return dense


def joined(shared_of: torch.Tensor, own: torch.Tensor, home) -> torch.Tensor:
    """A model with the shared columns of one row and the personal ones of another."""
    return torch.where(home, own, shared_of)


@for_homes
@everybody_or_some
def test_averages_are_of_shared_columns_and_only_these_are_sent(
    classification, home, active
):
    oracle, x = in_round(classification, 1, active, home=home)
    shared = int((~home).sum())
    found = oracle.average(SHARES, x)
    total = sum(float(SHARES[i]) for i in who(active))
    mean = sum(float(SHARES[i]) / total * x[i] for i in who(active))
    for i in range(N):
        assert_close(found[i], joined(mean, x[i], home), **EXACT)
        assert torch.equal(found[i, home], x[i, home])
    assert traffic_of(oracle.sent) == (2 * shared * len(who(active)), 0)


def test_averages_of_clusters_keep_everybodys_personal_columns(classification):
    oracle, x = in_round(classification, 1, home=HEAD)
    found = oracle.average(torch.eye(2, N, dtype=REAL), x)  # of client 0, of client 1
    assert found.shape == (N, 2, D)
    for i in range(N):
        for c in range(2):
            assert_close(found[i, c], joined(x[c], x[i], HEAD), **EXACT)
    assert traffic_of(oracle.sent).total == N * (1 + 2) * 39


@for_homes
@everybody_or_some
def test_mixtures_are_of_shared_columns_and_only_these_are_sent(
    classification, home, active
):
    oracle, x = in_round(classification, 1, active, home=home)
    shared = int((~home).sum())
    found = oracle.mix(weights(), x)
    for i in range(N):
        used = {*who(active), i}
        mixture = sum(weights()[i, k] * x[k] for k in used)
        assert_close(found[i], joined(mixture, x[i], home), **EXACT)
    links = sum(bool(weights()[i, k]) for i in range(N) for k in who(active) if i != k)
    assert traffic_of(oracle.sent) == (0, shared * links)


def seen_by_coordinator(server, here, x, numbers):
    """Rows in turn, the numbers, and how many columns there were."""
    turned = x.new_zeros(N, x.shape[1]).index_copy(0, here, x.roll(1, 0))
    more = numbers.new_ones(N, 2)
    return server, turned, more, torch.full((N, 1), float(x.shape[1]))


@for_homes
def test_a_coordinator_sees_shared_columns_alone(classification, home):
    oracle, x = in_round(classification, 1, SOME, home=home)
    shared = int((~home).sum())
    given = x, Numbers(torch.zeros(N, 2, dtype=REAL))
    _, turned, numbers, width = oracle.central(seen_by_coordinator, None, *given)
    here = list(who(SOME))
    for place, i in enumerate(here):
        assert torch.equal(turned[i], joined(x[here[place - 1]], x[i], home))
    assert (numbers == 1).all()
    assert (width == shared).all()
    assert traffic_of(oracle.sent) == (3 * (shared + 2 + shared + 2 + 1), 0)


def test_small_numbers_of_clients_are_averaged_and_mixed_as_ever(classification):
    oracle = simulate(classification, home=HEAD).at(1)
    uniform = torch.full((N, N), 1 / N, dtype=REAL)
    for columns in (2, D):  # numbers as long as a model are no model
        losses = torch.arange(float(columns) * N, dtype=REAL).reshape(N, columns)
        mean = sum(losses[i] for i in range(N)) / N
        for found in (
            oracle.average(torch.ones(N), Numbers(losses)),
            oracle.mix(uniform, Numbers(losses)),
        ):
            assert_close(found, mean.repeat(N, 1), **EXACT)
    with pytest.raises(InputError, match="models with 47 columns, or `Numbers`"):
        oracle.average(torch.ones(N), torch.zeros(N, 2, dtype=REAL))


def test_personal_columns_of_others_do_not_matter_at_all(classification):
    simulation, x = simulated(classification, home=HEAD)

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        oracle = simulation.at(1, SOME)
        central = oracle.central(lambda _, who, x: (0, 2 * x[:1].repeat(N, 1)), 0, x)[1]
        return [oracle.average(SHARES, x), oracle.mix(weights(), x), central]

    expected = results(x)
    for i in range(N):
        others = torch.arange(N) != i
        hidden = x.clone()
        hidden[others[:, None] & HEAD] = math.nan
        for found, known in zip(results(hidden), expected, strict=True):
            assert torch.equal(found[i], known[i])


@for_homes
@everybody_or_some
@pytest.mark.parametrize("batch_size", [0, 3])
def test_contributors_blend_with_personal_columns_of_their_own(
    classification, home, active, batch_size
):
    oracle, x = in_round(classification, 2, active, home=home, batch_size=batch_size)
    shared = int((~home).sum())
    found = oracle.blended(x, weights())
    stream = simulate(classification).at(2).key("blended", 0)
    expected, asked, pairs = torch.zeros_like(x), torch.zeros(N, dtype=REAL), 0
    for k in who(active):
        batch = mine(classification, k)
        if batch_size:
            batch = draws(classification, k, batch_size, stream)
        expected[k, home] = gradient(classification, x[k], batch)[home]
        asked[k] += len(batch)
        for i in who(active):
            if weights()[i, k]:
                g = gradient(classification, joined(x[i], x[k], home), batch)
                expected[i, ~home] += weights()[i, k] * g[~home]
                asked[k] += len(batch)
                pairs += i != k
    assert_close(found, expected, **EXACT)
    assert torch.equal(oracle.gradients, asked)
    assert traffic_of(oracle.sent) == (0, 2 * shared * pairs)


def half_gradients(simulation, federation, point, k: int):
    """Of both halves of a client's data, and of all of them."""
    stream = simulate(federation).at(3).key("compare", 0)
    first, second, _ = simulation.samples.halves(torch.tensor([k]), stream, None)
    chosen = [half.index[0][half.weight[0] > 0] for half in (first, second)]
    return [
        gradient(federation, point, index) for index in (*chosen, mine(federation, k))
    ]


@for_homes
def test_comparisons_are_of_shared_columns_at_personal_ones_of_each(
    classification, home
):
    simulation, x = simulated(classification, home=home)
    shared = int((~home).sum())
    oracle = simulation.at(3, SOME)
    seen = oracle.compare(x)
    assert traffic_of(oracle.sent) == (0, 3 * shared * 3 * 2)
    for i in who(SOME):
        own = half_gradients(simulation, classification, x[i], i)
        a_i, b_i, p_i = (g[~home] for g in own)
        assert_close(seen.own[i], a_i @ b_i, **EXACT)
        assert_close(seen.own_pooled[i], p_i @ p_i, **EXACT)
        for k in who(SOME):
            point = joined(x[i], x[k], home)
            theirs = half_gradients(simulation, classification, point, k)
            a_k, b_k, p_k = (g[~home] for g in theirs)
            assert_close(seen.cross[i, k], (a_i - a_k) @ (b_i - b_k), **EXACT)
            assert_close(seen.pooled[i, k], (p_i - p_k).square().sum(), **EXACT)
            if i != k:
                noise = (a_i - b_i) @ (a_k - b_k)
                assert_close(seen.noise[i, k], noise, **EXACT)


@pytest.mark.parametrize("home", [HEAD, ~HEAD], ids=["FedPer", "LG-FedAvg"])
def test_fedavg_with_personal_columns_is_a_plain_loop(classification, home):
    """Local steps of whole models, whose shared columns alone are averaged.

    With a personal head that is FedPer, with a personal body LG-FedAvg.
    """
    simulation = simulate(classification, home=home, batch_size=0)
    sizes = classification.train.size
    algorithm = fedavg(sizes, lr=0.2, steps=2)
    x = rows(simulation)
    state = algorithm.init(x, init_oracle(simulation))
    mean = x.mean(0)
    plain = [joined(mean, x[i], home) for i in range(N)]
    for t, active in ((1, None), (2, SOME), (3, None)):
        oracle = simulation.at(t, active)
        state, _ = algorithm.step(state, oracle, seeds.generator(t))
        for i in who(active):
            for _ in range(2):
                g = gradient(classification, plain[i], mine(classification, i))
                plain[i] = plain[i] - 0.2 * g
        total = sum(int(sizes[i]) for i in who(active))
        mean = sum(int(sizes[i]) / total * plain[i] for i in who(active))
        plain = [joined(mean, plain[i], home) for i in range(N)]
        found = algorithm.personal(state, simulation.at(t, purpose="use"))
        assert_close(found, torch.stack(plain), **EXACT)
        shared = int((~home).sum())
        assert traffic_of(oracle.sent).total == 2 * shared * len(who(active))


def normalised() -> nn.Module:
    """A network of images whose normalisation has scales and shifts to learn."""
    layers = {
        "conv": nn.Conv2d(1, 2, 3),
        "norm1": nn.BatchNorm2d(2),
        "flat": nn.Flatten(),
        "norm2": nn.LayerNorm(128),
        "head": nn.Linear(128, 3),
    }
    return models.with_group_norm(nn.Sequential(OrderedDict(layers)))


def test_fedavg_with_personal_normalisation_is_fedbn(images):
    """Modules of torch, of which all but the normalisation layers are averaged."""
    module = models.build(normalised, 0, REAL)
    home = models.columns(models.layout(module), ["norm*"])
    simulation = Simulation(images, module, dtype=REAL, batch_size=0, home=home)
    sizes = images.train.size
    algorithm = fedavg(sizes, lr=0.2, steps=2)
    x = models.ravel(module).repeat(len(images), 1)
    state = algorithm.init(x, init_oracle(simulation))
    plain = [copy.deepcopy(module) for _ in range(len(images))]
    for t in (1, 2, 3):
        state, _ = algorithm.step(state, simulation.at(t), seeds.generator(t))
        for i, twin in enumerate(plain):
            sgd = torch.optim.SGD(twin.parameters(), lr=0.2)
            for _ in range(2):
                sgd.zero_grad()
                mine_i = mine(images, i)
                outputs = twin(images.features[mine_i])
                nn.functional.cross_entropy(outputs, images.targets[mine_i]).backward()
                sgd.step()
        shared = [name for name in module.state_dict() if "norm" not in name]
        assert len(shared) == 4 and len(module.state_dict()) == 8
        with torch.no_grad():
            for name in shared:
                parts = [twin.get_parameter(name) for twin in plain]
                weighted = zip(sizes.tolist(), parts, strict=True)
                mean = sum(n * part for n, part in weighted) / sizes.sum()
                for part in parts:
                    part.copy_(mean)
    expected = torch.stack([models.ravel(twin) for twin in plain])
    assert_close(state.x, expected.detach(), **EXACT)
    # They did learn normalisations of their own.
    assert float((expected[0] - expected[1])[home].abs().max()) > 1e-3
