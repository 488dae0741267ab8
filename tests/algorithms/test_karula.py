"""Claims about Karula: limit cases, projected gradient descent, what its terms do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.karula import Memory, State, karula
from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.data import synthetic
from support.federations import error, of_groups
from support.projected import excess, excess_of, general_solver
from support.quadratics import EXACT, REAL, SAMPLES, D, hessians, quadratics, start
from support.recipes import radius as radius_of
from support.rounds import ACTIVE, simulate, solve, train

N = 6
# The accuracy of the general solver of the tests, after a few steps.
SOLVER = {"rtol": 0, "atol": 1e-5}


def dissimilarity(n: int = N) -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    points = torch.randn(n, 2, generator=rng, dtype=REAL)
    return torch.cdist(points, points, p=1.0)


def scaled(radius: torch.Tensor, n: int = N) -> torch.Tensor:
    """The radii divided by their mean off the diagonal, over the first n."""
    return radius * n * (n - 1) / radius[:n, :n].sum()


def last(algorithm, federation, rounds=5, active=None, x=None):
    x = start() if x is None else x
    return train(algorithm, simulate(federation), x, rounds, active)[0][-1]


def gradients(a, b, x) -> torch.Tensor:
    """A_i (x_i - theta_i) of the quadratic losses."""
    return (a @ x[:, :, None])[:, :, 0] - b


def weights() -> torch.Tensor:
    return SAMPLES / SAMPLES.double().mean()


def test_a_bound_of_zero_is_fedsgd_on_the_weighted_loss():
    federation = quadratics()
    one = last(karula(dissimilarity(), SAMPLES, t=0.0, lr=0.1), federation)
    together = last(fedavg(SAMPLES, lr=0.1), federation)
    assert_close(one.x, together.x, **EXACT)
    assert len(one.x.unique(dim=0)) == 1


def test_a_large_bound_is_local_training():
    federation, equal = quadratics(), torch.full((N,), 7)
    same = start().mean(0).expand(N, D).clone()
    for options in ({}, {"weight_decay": 0.1, "schedule": "inverse(3)"}):
        free = last(karula(dissimilarity(), equal, t=1e9, **options), federation)
        alone = last(local(**options), federation, x=same)
        assert_close(free.x, alone.x, **EXACT)


def test_a_large_bound_with_sizes_is_local_training_with_steps_of_their_length():
    federation = quadratics()
    free = last(karula(dissimilarity(), SAMPLES, t=1e9, lr=0.1), federation)
    a, b = hessians(federation)
    x = start().mean(0).expand(N, D)
    for _ in range(5):
        g = gradients(a, b, x)
        x = x - 0.1 * weights()[:, None] * g
    assert_close(free.x, x, **EXACT)


def projected_descent(federation, bounds, rounds, lr, active=None):
    """Algorithm 1 with a general solver for the projection, in plain steps."""
    a, b = hessians(federation)
    x, g = start().mean(0).expand(N, D).clone(), torch.zeros(N, D, dtype=REAL)
    active = torch.ones(N, dtype=torch.bool) if active is None else active
    eta = N * lr
    for _ in range(rounds):
        nu = torch.zeros(N, D, dtype=REAL)
        for i in range(N):
            nu[i] = g[i] / N
            if active[i]:
                fresh = weights()[i] * (a[i] @ x[i] - b[i])
                nu[i] += (fresh - g[i]) / active.sum()
                g[i] = fresh
        x = general_solver(x - eta * nu, bounds)
    return x, g


@pytest.mark.parametrize("t", [0.05, 1.0])
def test_with_everybody_it_is_projected_gradient_descent(t):
    federation = quadratics()
    found = last(karula(dissimilarity(), SAMPLES, t=t, lr=0.1), federation, 4)
    bounds = t * scaled(dissimilarity())
    expected, g = projected_descent(federation, bounds, 4, 0.1)
    assert_close(found.x, expected, **SOLVER)
    assert_close(found.server.g, g, **SOLVER)
    assert excess(found.x, bounds) < 1e-12
    assert (found.server.multipliers > 0).any()


def test_with_some_clients_the_gradients_of_the_others_are_remembered():
    federation = quadratics()
    algorithm = karula(dissimilarity(), SAMPLES, t=0.3, lr=0.05)
    found = last(algorithm, federation, 3, ACTIVE)
    bounds = 0.3 * scaled(dissimilarity())
    expected, g = projected_descent(federation, bounds, 3, 0.05, ACTIVE)
    assert_close(found.x, expected, **SOLVER)
    assert_close(found.server.g, g, **SOLVER)
    assert not found.server.g[~ACTIVE].any()  # never asked
    # The absent move too: those who are tied to them pull.
    assert (found.x[~ACTIVE] != start().mean(0)).any(1).all()


def estimates(federation, state: State, s: int):
    """x after a step without constraints, for every set of s clients."""
    algorithm = karula(dissimilarity(), SAMPLES, t=1e9, lr=0.1)
    simulation = simulate(federation)
    for chosen in itertools.combinations(range(N), s):
        active = torch.zeros(N, dtype=torch.bool).index_fill(
            0, torch.tensor(chosen), True
        )
        oracle = simulation.at(1, active)
        yield algorithm.step(state, oracle, seeds.generator(0))[0].x, active


def printed(g, fresh, active):
    """The estimate as the paper prints it, with stored gradients g."""
    new = torch.where(active[:, None], fresh, g)
    return g + (new - g) / active.sum()


@pytest.mark.parametrize("s", [1, 2, 5, 6])
def test_the_estimate_is_unbiased_and_the_printed_one_is_not(s):
    federation = quadratics()
    a, b = hessians(federation)
    x = start()
    fresh = weights()[:, None] * gradients(a, b, x)
    stored = torch.randn(N, D, generator=torch.Generator().manual_seed(9)).double()
    state = State(x, Memory(x, stored, torch.zeros(N, N, dtype=REAL)), 0)
    gradient = fresh / N  # of (1/n) sum_i a_i f_i
    eta = N * 0.1
    found = list(estimates(federation, state, s))
    ours = torch.stack([(x - moved) / eta for moved, _ in found])
    assert_close(ours.mean(0), gradient, **EXACT)
    theirs = torch.stack([printed(stored, fresh, active) for _, active in found])
    assert float((theirs.mean(0) - gradient).abs().max()) > 0.1


def test_with_everybody_the_printed_step_is_no_gradient_descent():
    # What the printed update does where it should be plain gradient descent.
    federation = quadratics()
    a, b = hessians(federation)
    best = solve(a, b)
    x = start()
    g = weights()[:, None] * gradients(a, b, x) / N
    everybody = torch.ones(N, dtype=torch.bool)
    distances = []
    for _ in range(30):
        fresh = weights()[:, None] * gradients(a, b, x)
        nu = printed(g, fresh, everybody)
        g, x = fresh, x - N * 0.1 * nu
        distances.append(float((x - best).norm()))
    assert distances[-1] > 10 * distances[0]
    ours = last(karula(dissimilarity(), SAMPLES, t=1e9, lr=0.1), federation, 30)
    assert float((ours.x - best).norm()) < 0.5 * float((start() - best).norm())


def test_only_proportions_of_the_dissimilarity_matter():
    federation = quadratics()
    one = last(karula(dissimilarity(), SAMPLES, t=0.3), federation)
    other = last(karula(1e-3 * dissimilarity(), SAMPLES, t=0.3), federation)
    # A relative gap of 1e-9, and digits of the radii.
    assert_close(one.x, other.x, rtol=0, atol=1e-6)


def test_equal_data_get_equal_models_and_no_tie_none():
    federation = quadratics()
    radius = torch.full((N, N), torch.inf, dtype=REAL).fill_diagonal_(0)
    radius[0, 2] = radius[2, 0] = 0.0
    radius[1, 4] = radius[4, 1] = 0.5
    found = last(karula(radius, SAMPLES, t=0.01, lr=0.1), federation)
    assert torch.equal(found.x[0], found.x[2])
    # The only finite radii off the diagonal are 0 and 0.5, with mean 0.25.
    assert float((found.x[1] - found.x[4]).square().sum()) <= 0.02 + 1e-12
    free = last(karula(dissimilarity(), SAMPLES, t=1e9, lr=0.1), federation)
    assert_close(found.x[[3, 5]], free.x[[3, 5]], **EXACT)
    # And zero times infinity is a bound of zero.
    one = last(karula(radius, SAMPLES, t=0.0, lr=0.1), federation)
    assert len(one.x.unique(dim=0)) == 1


def test_a_start_from_old_multipliers_changes_the_result_by_the_tolerance_only():
    federation = quadratics()
    algorithm = karula(dissimilarity(), SAMPLES, t=0.3, tolerance=1e-12)
    states, _ = train(algorithm, simulate(federation), start(), 6)
    memory = states[5].server._replace(multipliers=torch.zeros(N, N, dtype=REAL))
    forgetful = states[5]._replace(server=memory)
    oracle = simulate(federation).at(6)
    after, _ = algorithm.step(forgetful, oracle, seeds.generator(0, 6))
    assert_close(after.x, states[6].x, rtol=0, atol=1e-6)


def test_a_round_tells_what_it_sent_and_who_is_tied():
    federation = quadratics()
    algorithm = karula(dissimilarity(), SAMPLES, t=0.3, lr=0.1)
    states, infos = train(algorithm, simulate(federation), start(), 3, ACTIVE)
    info = infos[-1]
    # A gradient goes up; a model, a row of mixing, the gap and active pairs come down.
    assert info["sent"] == 4 * (D + (D + N + 1 + 1))
    pairs = int((states[-1].server.multipliers > 0).sum()) // 2
    assert info["active_pairs"].mean() == pairs > 0
    assert ((info["gap"] >= 0) & (info["gap"] < 1e-6)).all()
    assert_close(info["weights"].sum(1), torch.ones(N, dtype=REAL))
    assert (info["weights"] >= 0).all()
    lam = states[-1].server.multipliers
    inverse = torch.linalg.inv(torch.eye(N) + lam.sum(1).diag() - lam)
    assert_close(info["weights"], inverse, rtol=0, atol=1e-6)


def test_it_finds_the_minimum_of_the_constrained_problem():
    federation = quadratics()
    bounds = 0.5 * scaled(dissimilarity())
    found = last(karula(dissimilarity(), SAMPLES, t=0.5, lr=0.2), federation, 70)
    a, b = hessians(federation)
    gradient = weights()[:, None] * gradients(a, b, found.x) / N
    # A fixed point of projected gradient descent, by another projection.
    assert_close(general_solver(found.x - gradient, bounds), found.x, **SOLVER)
    assert float(gradient.norm()) > 0.01  # not that of the free problem


def clustered(seed: int):
    """Twelve clients in three clusters with twelve noisy samples of ten features."""
    law = {"clusters": 3, "dimension": 10, "spread": 1.0, "variation": 0.1}
    table = synthetic.linear(clients=12, samples=14, noise=1.0, seed=seed, **law)
    return of_groups(table)


def test_small_clients_in_clusters_are_better_off_than_alone_and_than_with_all():
    rows = []
    for seed in range(3):
        federation = clustered(seed)
        x, sizes = torch.zeros(12, 10, dtype=REAL), federation.train.size
        true = radius_of("optima", federation)
        t = float(true.sum()) / (12 * 11)  # with which the best models are feasible
        methods = (
            local(lr=0.15),
            fedavg(sizes, lr=0.15),
            karula(radius_of("transport", federation), sizes, t=10.0, lr=0.15),
            karula(true, sizes, t=t, lr=0.15),
        )
        simulation = simulate(federation)
        ends = [train(method, simulation, x, 40)[0][-1].x for method in methods]
        rows.append([error(federation, end) for end in ends])
    alone, together, transport, optima = torch.tensor(rows).mean(0).tolist()
    assert transport < 0.9 * min(alone, together)
    assert optima < 0.5 * min(alone, together)


# Newcomers.


def newcomers(t: float, rounds: int = 4, **options):
    """Four clients train, two join: their models, the state, and their Hessians."""
    federation = quadratics()
    trained, later = map(federation.select, torch.arange(6).split([4, 2]))
    radius = dissimilarity()
    algorithm = karula(radius[:4, :4], SAMPLES[:4], t=t, lr=0.1, **options)
    state = train(algorithm, simulate(trained), start(4), rounds)[0][-1]
    everybody = karula(radius, SAMPLES, t=t, lr=0.1, **options)
    oracle = simulate(later).at(rounds, purpose="welcome")
    return everybody.welcome(state, oracle), state, hessians(later)


def test_newcomers_descend_within_the_bounds_to_all_who_are_there():
    x, state, (a, b) = newcomers(0.3)
    bounds = 0.3 * scaled(dissimilarity(), 4)[4:, :4]
    assert float(excess_of(x, state.x, bounds).max()) < 1e-6
    for j in range(2):
        # One free row at a time: the others are held by a mass beyond all measure.
        ties = torch.full((5, 5), torch.inf, dtype=REAL)
        ties[0, 1:], ties[1:, 0] = bounds[j], bounds[j]
        row = state.x.mean(0)
        for k in range(5):
            given = torch.cat([row[None], state.x])
            row = general_solver(given, ties, [1.0, *[1e6] * 4])[0]
            if k < 4:
                row = row - 0.1 * (a[j] @ row - b[j])
        assert_close(x[j], row, rtol=0, atol=1e-4)


def test_newcomers_without_room_get_the_global_model_and_with_all_room_their_own():
    x, state, _ = newcomers(0.0)
    assert_close(x, state.x[:2], **EXACT)
    x, state, (a, b) = newcomers(1e9, weight_decay=0.1, schedule="inverse(3)")
    rows = state.x.mean(0).expand(2, D)
    for k in range(4):
        g = gradients(a, b, rows) + 0.1 * rows
        rows = rows - 0.1 * 3 / (3 + k) * g
    assert_close(x, rows, **EXACT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(1, 4): math.nan}, "`radius` must not be NaN, but between clients 1 and 4"),
        ({(2, 3): -1.0}, "`radius` must be non-negative, but between clients 2 and 3"),
        ({(0, 5): 9.0}, "must be symmetric, but between clients 0 and 5 it is 9 and"),
        (
            {(3, 3): 1.0},
            "must be 0 between a client and itself, but .* 3 and 3 it is 1",
        ),
    ],
)
def test_a_wrong_dissimilarity_is_refused_with_the_pair(change, message):
    radius = dissimilarity()
    for place, value in change.items():
        radius[place] = value
    with pytest.raises(InputError, match=message):
        karula(radius, SAMPLES)


def test_a_dissimilarity_may_be_symmetric_but_for_rounding():
    """Products of most libraries are like this: they add up in either order."""
    radius = dissimilarity()
    radius[1, 2] = radius[2, 1] = torch.inf
    rounded = torch.where(radius.triu() > 0, radius * (1 + 1e-15), radius)
    assert (rounded != rounded.T).any()
    given = {"sizes": SAMPLES, "t": 0.3, "lr": 0.1}
    one, other = (last(karula(r, **given), quadratics()) for r in (radius, rounded))
    # A relative gap of 1e-9 of the projection, as the radii change by less.
    assert_close(one.x, other.x, rtol=0, atol=1e-6)
