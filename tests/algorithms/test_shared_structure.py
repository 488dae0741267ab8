"""Claims about methods whose models share a body, a subspace, or a small norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.fedrep import fedrep
from coterie.algorithms.low_rank_corrections import low_rank_corrections
from coterie.algorithms.nuclear_norm import nuclear_norm
from coterie.algorithms.shared_subspace import shared_subspace
from coterie.checks import InputError
from coterie.clients.oracles import SimulatedOracle
from coterie.clients.simulation import Simulation
from coterie.collaboration.directions import by_lanczos
from coterie.data.federation import Table, federate
from coterie.optim.factors import expand, factor_columns, factor_gradient, first_factors
from coterie_theory.structure import (
    burer_monteiro,
    fista,
    nuclear_radius,
    squared_distance,
    top_subspace,
)
from support import federations, rounds
from support.oracles import Everybody
from support.plain_clients import mine
from support.shared_models import error, shared

REAL = torch.float64
EXACT = {"rtol": 1e-9, "atol": 1e-11}
N = 6
SIZES = torch.tensor(federations.SIZES)


def net() -> nn.Module:
    return models.build(lambda: models.mlp((12,), 2, hidden=(3,)), 0, REAL)


def start() -> torch.Tensor:
    return models.ravel(net()).expand(N, -1).clone()


HEAD = models.columns(net(), ["head"])
LAYERS = models.matrices(net())


def simulate(federation) -> Simulation:
    return Simulation(federation, net(), batch_size=0, dtype=REAL)


def gradient(federation, row, client) -> torch.Tensor:
    index = mine(federation, client)
    twin = models.with_row(net(), row)
    outputs = twin(federation.features[index])
    nn.functional.cross_entropy(outputs, federation.targets[index]).backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters()])


def stepped(federation, row, client, part) -> torch.Tensor:
    """The model after a step of 0.2 in these parameters."""
    return row - 0.2 * torch.where(part, gradient(federation, row, client), 0)


def test_fedrep_is_its_loop_over_clients(classification):
    algorithm = fedrep(SIZES, HEAD, lr=0.2, steps=2, head_steps=3)
    simulation = simulate(classification)
    states, infos = rounds.train(algorithm, simulation, start(), 2)
    rows = list(start())
    for _ in range(2):
        for i in range(N):
            for _ in range(3):
                rows[i] = stepped(classification, rows[i], i, HEAD)
            for _ in range(2):
                rows[i] = stepped(classification, rows[i], i, ~HEAD)
        body = (SIZES.to(REAL) / SIZES.sum()) @ torch.stack(rows)
        rows = [torch.where(HEAD, row, body) for row in rows]
    found = algorithm.personal(states[-1], simulation.at(2, purpose="use"))
    assert_close(found, torch.stack(rows), **EXACT)
    # Bodies go up and down, heads never leave.
    assert all(info["sent"] == 2 * N * int((~HEAD).sum()) for info in infos)


def test_newcomers_of_fedrep_train_a_head_on_the_body_as_it_is(classification):
    algorithm = fedrep(SIZES, HEAD, lr=0.2, head_steps=2)
    simulation = simulate(classification)
    states, _ = rounds.train(algorithm, simulation, start(), 3)
    w = states[-1].w[0]
    found = algorithm.welcome(states[-1], simulation.at(4, purpose="welcome"))
    assert_close(found[:, ~HEAD], w[~HEAD].expand(N, -1), **EXACT)
    row = w
    for _ in range(3 * 2):
        row = stepped(classification, row, 0, HEAD)
    assert_close(found[0], row, **EXACT)


def test_momentum_of_one_part_does_not_move_the_other(classification):
    algorithm = fedrep(SIZES, HEAD, lr=0.1, momentum=0.9, head_steps=1)
    simulation = simulate(classification)
    states, _ = rounds.train(algorithm, simulation, start(), 1)
    row, v = start()[0], torch.zeros_like(start()[0])
    for part in (HEAD, ~HEAD):
        v = torch.where(part, gradient(classification, row, 0) + 0.9 * v, v)
        row = torch.where(part, row - 0.1 * v, row)
    assert_close(states[-1].x[0], row, **EXACT)


def test_a_head_of_another_model_is_refused(classification):
    wrong = fedrep(SIZES, HEAD[:-1])
    with pytest.raises(InputError, match=r"`head` must have .* 47 columns"):
        wrong.init(start(), simulate(classification).at(0))
    wrong = low_rank_corrections(SIZES, LAYERS + 40)
    with pytest.raises(InputError, match=r"`layers` must lie in the 47 columns"):
        wrong.init(start(), simulate(classification).at(0))


def test_gradients_of_factors_are_those_of_the_corrected_model():
    shape = (2, *LAYERS.flatten().tolist())
    rng = torch.Generator().manual_seed(0)
    factors = torch.randn(2, factor_columns(shape), generator=rng, dtype=REAL)
    target = torch.randn(2, 47, generator=rng, dtype=REAL)
    factors.requires_grad_()
    (expand(factors, shape, 47) * target).sum().backward()
    assert_close(factor_gradient(target, factors.detach(), shape), factors.grad)


def test_corrections_begin_with_nothing_and_have_their_rank():
    shape = (2, *LAYERS.flatten().tolist())
    rng = torch.Generator().manual_seed(0)
    like = torch.zeros(1, dtype=REAL)
    first = first_factors(shape, rng, like)
    assert not expand(first[None], shape, 47).any()
    noise = torch.randn(1, len(first), generator=rng, dtype=REAL)
    whole = expand(noise, shape, 47)[0]
    for begin, o, i in LAYERS.tolist():
        matrix = whole[begin : begin + o * i].view(o, i)
        assert torch.linalg.matrix_rank(matrix) == 2
    outside = torch.ones(47, dtype=torch.bool)
    for begin, o, i in LAYERS.tolist():
        outside[begin : begin + o * i] = False
    assert not whole[outside].any()


def test_corrections_stay_at_home_and_differ_from_the_shared_model_by_low_rank(
    classification,
):
    algorithm = low_rank_corrections(SIZES, LAYERS, rank=1, lr=0.2)
    simulation = simulate(classification)
    states, infos = rounds.train(algorithm, simulation, start(), 3)
    x = algorithm.personal(states[-1], simulation.at(3, purpose="use"))
    begin, o, i = LAYERS[0].tolist()
    change = (x - states[-1].w)[:, begin : begin + o * i].view(N, o, i)
    assert (torch.linalg.matrix_rank(change) == 1).all()
    assert all(info["sent"] == 2 * N * 47 for info in infos)


def linear_clients(truth) -> Simulation:
    """Clients with the samples of a shared truth, and linear models without bias."""
    features, targets = truth.data[:2]
    n, m, _ = features.shape
    owner = torch.arange(n).repeat_interleave(m).repeat(3)
    part = torch.arange(3).repeat_interleave(n * m)
    flat = features.flatten(0, 1).repeat(3, 1), targets.flatten().repeat(3)
    table = Table("samples", *flat, "regression", 1)
    return rounds.simulate(federate(table, owner, part))


def followed(algorithm, simulation, rounds):
    x = torch.zeros(len(simulation), simulation.kernel.parameters, dtype=REAL)
    state = algorithm.init(x, simulation.at(0))
    for t in range(1, rounds + 1):
        oracle = simulation.at(t)
        state, info = algorithm.step(state, oracle, seeds.generator("rounds", t))
    return state, info, oracle


def test_shared_subspace_recovers_models_without_noise():
    """Clients have fewer samples than dimensions; losses are twice those of tasks."""
    truth = shared(30, 8, 2, 6)
    simulation = linear_clients(truth)
    method = shared_subspace(rank=2, cap=2.0, lr=0.2)
    state, _, oracle = followed(method, simulation, 35)
    assert error(method.personal(state, oracle), truth.x) < 1e-4
    assert squared_distance(state.u[0].T, truth.basis) < 1e-4
    # A newcomer needs samples for its coordinates alone: 2, where D is 8.
    late = shared(30, 8, 2, 3)
    newcomers = linear_clients(late)
    found = method.welcome(state, newcomers.at(99, purpose="welcome"))
    assert error(found, late.x) < 0.05


def test_shared_subspace_arrives_where_the_estimator_does():
    truth = shared(30, 8, 2, 10, noise=0.3)
    simulation = linear_clients(truth)
    method = shared_subspace(rank=2, cap=1.0, lr=0.1)
    state, _, oracle = followed(method, simulation, 35)
    best = burer_monteiro(truth.data, rank=2, cap=1.0, steps=300, tolerance=1e-12)
    x = method.personal(state, oracle)
    assert error(x, best.x) < 1e-3
    assert float(x.norm(dim=1).max()) < 1.01  # steps of U move them a little


def test_a_subspace_of_more_dimensions_than_clients_is_refused():
    simulation = linear_clients(shared(3, 8, 2, 4))
    with pytest.raises(InputError, match="`rank` must be at most"):
        shared_subspace(rank=4).init(torch.zeros(3, 8, dtype=REAL), simulation.at(0))


def test_nuclear_norm_agrees_with_fista_and_certifies_it():
    truth = shared(20, 6, 2, 10, noise=0.3)
    simulation = linear_clients(truth)
    radius = nuclear_radius(0.6, 20, 2)
    best = fista(truth.data, radius=radius, tolerance=1e-8, steps=5000)
    options = {"rank": 2, "cap": 0.6, "lr": 0.1, "exchanges": 6, "width": 6}
    method = nuclear_norm(atoms=2, corrections=20, **options)
    state, info, oracle = followed(method, simulation, 8)
    # Squared errors without a half.
    assert info["loss"] == pytest.approx(2 * best.loss, rel=1e-3)
    # The reference is itself within 1e-8 of the least.
    least = 2 * best.loss
    assert info["loss"] - info["gap"] <= least * (1 + 1e-7)
    assert least <= info["loss"] * (1 + 1e-7)
    assert info["relative_gap"] < 1e-2
    assert float(torch.linalg.svdvals(state.w).sum()) <= radius * (1 + 1e-6)
    assert max(sent.values for sent in oracle.sent) <= 6 + 2
    assert {sent.verb for sent in oracle.sent} == {"average"}
    near = squared_distance(top_subspace(state.w, 2), top_subspace(best.x, 2))
    assert near < 1e-2


def test_with_one_atom_and_one_correction_the_gap_falls_as_in_frank_wolfe():
    truth = shared(20, 6, 2, 10, noise=0.3)
    simulation = linear_clients(truth)
    options = {"rank": 2, "cap": 0.6, "lr": 0.1, "exchanges": 6, "width": 6}
    method = nuclear_norm(atoms=1, corrections=1, **options)
    gaps = [followed(method, simulation, t)[1]["gap"] for t in (2, 20)]
    assert gaps[1] < 0.2 * gaps[0]


@pytest.mark.parametrize("exchanges", [1, 3, 6, 9])
def test_bounds_on_the_longest_direction_are_above_it_with_any_number_of_exchanges(
    exchanges,
):
    rng = torch.Generator().manual_seed(0)
    g = torch.randn(15, 6, generator=rng, dtype=REAL)
    true = float(torch.linalg.eigvalsh(g.T @ g / 15)[-1])
    found, bound = by_lanczos(Everybody(15), g, exchanges, rng)
    assert bound >= true * (1 - 1e-12)
    if exchanges >= 6:
        assert bound == pytest.approx(true)
        top = torch.linalg.svd(g)[2][:1]
        assert squared_distance(found[:1].T, top.T) < 1e-12


@pytest.mark.parametrize("rank", [1, 2])
def test_parameters_that_stay_at_home_are_refused_where_messages_are_not_models(
    classification, rank
):
    home = models.columns(net(), ["body"])
    simulation = Simulation(classification, net(), home=home, dtype=REAL)
    for method in (fedrep(SIZES, HEAD), shared_subspace(rank=rank), nuclear_norm()):
        message = "`personal` cannot be used with this method"
        with pytest.raises(InputError, match=message):
            method.init(start(), simulation.at(0))


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_rounding_of_averages_is_not_taken_for_parameters_that_stay_at_home(
    n, monkeypatch
):
    """A product of matrices may round every column differently."""
    exact = SimulatedOracle.average

    def rounded(self, shares, rows, groups=None):
        mean = exact(self, shares, rows, groups)
        signs = torch.arange(mean.shape[-1]) % 3 - 1
        return mean * (1 + torch.finfo(mean.dtype).eps * signs)

    monkeypatch.setattr(SimulatedOracle, "average", rounded)
    sizes = tuple(4 + i % 5 for i in range(n))  # uneven
    rng = seeds.generator("tests", "many")
    features = torch.randn(federations.samples(sizes), 12, generator=rng)
    targets = (features[:, 0] > 0).long()
    table = Table("many", features, targets, "classification", 2)
    module = net().float()
    simulation = Simulation(federations.divided(table, sizes), module)
    x = models.ravel(module).expand(n, -1).clone()
    fed = fedrep(torch.tensor(sizes), HEAD)
    for method in (fed, shared_subspace(), nuclear_norm()):
        state = method.init(x, simulation.at(0))
        assert_close(method.personal(state, simulation.at(0)), x)
