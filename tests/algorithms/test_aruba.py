"""Claims about ARUBA: independent loops, limit cases, and what its step sizes do."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.aruba import aruba
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.fedavg_finetune import fedavg_finetune
from coterie.algorithms.local import local
from coterie.clients.simulation import Simulation
from coterie.data.federation import Table, federate
from coterie.engine.rounds import run_rounds
from support import federations
from support.oracles import begun, with_verbs
from support.quadratics import EXACT, REAL, start
from support.rounds import ACTIVE, drawn, gradient, simulate, train

N, D = 6, 26
SIZES = torch.tensor(federations.SIZES)
X = start(N, D)


def asked(simulation, row, t: int, client: int, question: int) -> torch.Tensor:
    """The gradient that a client program gets in round t, by hand."""
    index = drawn(simulation, t, client, question)
    return gradient(simulation.federation, row, index)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_it_is_algorithm_2_around_fedavg(classification, weighting):
    simulation = simulate(classification, 3)
    algorithm = aruba(SIZES, lr=0.3, steps=3, zeta=0.5, p=2.0, weighting=weighting)
    states, infos = train(algorithm, simulation, X, 2, ACTIVE)
    eps, zeta, p = 0.3 * 0.5, 0.5, 2.0
    w, who = X.mean(0), ACTIVE.nonzero()[:, 0].tolist()
    b, g = torch.full_like(w, eps**2), torch.full_like(w, zeta**2)
    share = {i: float(SIZES[i]) if weighting == "samples" else 1.0 for i in who}
    for t in (1, 2):
        eta = (b / g).sqrt()
        b, g = b + eps**2 / (t + 1) ** p, g + zeta**2 / (t + 1) ** p
        total = torch.zeros_like(w)
        for i in who:
            mine = w.clone()
            for question in range(3):
                slope = asked(simulation, mine, t, i, question)
                g = g + slope**2 / len(who)
                mine = mine - eta * slope
            b = b + (mine - w) ** 2 / 2 / len(who)
            total = total + share[i] / sum(share.values()) * mine
        w = total
    for found, wanted in zip(states[-1][:3], (w, b, g), strict=True):
        assert_close(found, wanted.repeat(N, 1), **EXACT)
    # Three averages of the four who take part: models, distances, squared gradients.
    assert infos[-1]["sent"] == 4 * 3 * 2 * D
    assert infos[-1]["step_size"] == pytest.approx(float((b / g).sqrt().mean()))


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_step_sizes_that_resist_all_change_give_fedavg(classification, weighting):
    simulation = simulate(classification, 3)
    options = {"lr": 0.3, "steps": 3, "weighting": weighting}
    ours, _ = train(aruba(SIZES, zeta=1e8, **options), simulation, X, 3, ACTIVE)
    theirs, _ = train(fedavg(SIZES, **options), simulation, X, 3, ACTIVE)
    # Gradients of order 1 against zeta^2 = 1e16.
    assert_close(ours[-1].w, theirs[-1].x, **EXACT)


@with_verbs
class Scripted:
    """An oracle of two clients whose gradients do not depend on the model."""

    active = torch.tensor([True, True])

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.asked = 0

    def at(self, t, active):
        return Scripted(self.scale)

    def each(self, program, *rows, **options):
        return program(self, *rows, **options)

    def grad(self, points):
        """Coordinate 0 is always the same, coordinate 1 changes its sign."""
        self.asked += 1
        back = -1.0 if self.asked % 2 else 1.0
        return self.scale * points.new_tensor([1.0, back, 0.0]).expand_as(points)

    def unused(self, *arguments, **options):
        raise NotImplementedError

    grads = blended = compare = loss = losses = unused
    hvp = same_batch = whole = validation = unused
    evaluate = class_counts = stream = unused


def test_steps_grow_where_local_runs_lead_somewhere_and_shrink_where_they_shake():
    algorithm = aruba(torch.ones(2), lr=0.1, steps=8)
    *_, last = train(algorithm, Scripted(), torch.zeros(2, 3), 5)[0]
    eta = (last.b / last.g).sqrt()[0]
    # Eight steps one way are (8 eta)^2 / 2 for 8 squared gradients: eta^2 times 4.
    assert eta[0] > 1.5 * 0.1
    # To and fro leads nowhere: b grows by its small regular term only.
    assert eta[1] < 0.5 * 0.1
    # Where nothing happens nothing is learnt.
    assert eta[2] == pytest.approx(0.1)


def test_the_first_round_has_a_closed_form():
    lr, zeta, p, steps = 0.1, 2.0, 0.5, 4
    algorithm = aruba(torch.ones(2), lr=lr, zeta=zeta, p=p, steps=steps)
    _, state = train(algorithm, Scripted(), torch.zeros(2, 3, dtype=REAL), 1)[0]
    eps, fade = lr * zeta, 1 + 2**-p
    travelled = torch.tensor([(steps * lr) ** 2 / 2, 0.0, 0.0], dtype=REAL)
    squares = torch.tensor([steps, steps, 0.0], dtype=REAL)
    assert_close(state.b, (eps**2 * fade + travelled).repeat(2, 1), **EXACT)
    assert_close(state.g, (zeta**2 * fade + squares).repeat(2, 1), **EXACT)


def test_the_unit_of_the_loss_does_not_matter_if_zeta_has_it_too():
    paths = []
    for unit in (1.0, 7.0):
        algorithm = aruba(torch.ones(2), lr=0.1 / unit, zeta=2.0 * unit, steps=3)
        zero = torch.zeros(2, 3, dtype=REAL)
        paths.append(train(algorithm, Scripted(unit), zero)[0][-1].w)
    assert_close(paths[0], paths[1], **EXACT)


def test_it_is_tuned_with_the_learnt_steps_and_nothing_is_learnt_in_use(classification):
    simulation = simulate(classification, 3)
    algorithm = aruba(SIZES, lr=0.3, steps=3, tune_steps=2)
    _, state = train(algorithm, simulation, X, 1)[0]
    before = [part.clone() for part in state[:3]]
    found = algorithm.personal(state, simulation.at(1))
    for i in range(N):
        row = state.w[i]
        for k in range(2):
            eta = (state.b[i] / state.g[i]).sqrt()
            row = row - eta * asked(simulation, row, 1, i, k)
        assert_close(found[i], row, **EXACT)
    assert all(map(torch.equal, before, state[:3]))


def test_newcomers_tune_the_global_model_on_their_own_training_data(classification):
    four = aruba(SIZES[:4], lr=0.3)
    five = aruba(SIZES[[0, 1, 2, 3, 5]], lr=0.3, tune_steps=2)
    state = begun(four, X[:4])
    newcomer = simulate(classification.only(5))
    found = five.welcome(state, newcomer.at(1, purpose="use"))
    row, everybody = state.w[0], simulate(classification)
    for k in range(2):
        row = row - 0.3 * asked(everybody, row, 1, 5, k)
    assert_close(found, row[None], **EXACT)


def scales(clients: int) -> Simulation:
    """Regression with one steep and four flat directions, six samples each.

    Clients differ in the steep direction and share the flat ones, which a step size
    that suits the steep one reaches slowly.
    """
    rng = seeds.generator("tests", "scales")
    owner = torch.arange(clients).repeat_interleave(6 + 1 + 30)
    role = torch.tensor([0] * 6 + [1] + [2] * 30).repeat(clients)
    features = torch.randn(len(owner), 5, generator=rng, dtype=REAL)
    features[:, 1:] *= 0.2
    best = torch.full((clients, 5), 5.0, dtype=REAL)
    best[:, 0] = torch.randn(clients, generator=rng, dtype=REAL)
    noise = 0.1 * torch.randn(len(owner), generator=rng, dtype=REAL)
    targets = (features * best[owner]).sum(1) + noise
    table = Table("scales", features, targets, "regression", 1)
    return simulate(federate(table, owner, role), 4)


def test_learnt_steps_help_where_directions_have_different_scales():
    simulation, x = scales(8), torch.zeros(8, 5, dtype=REAL)
    sizes, same = simulation.federation.train.size, {"lr": 0.1, "steps": 10}

    def loss(algorithm) -> float:
        *_, last = run_rounds(algorithm, simulation, x, rounds=25)
        used = algorithm.personal(last.state, simulation.at(25, purpose="use"))
        return float(simulation.evaluate(used, "test")["loss"].mean())

    ours = loss(aruba(sizes, tune_steps=10, **same))
    tuned = fedavg_finetune(sizes, tune_steps=10, tune_lr=0.1, **same)
    assert ours < loss(tuned) / 1.5
    assert ours < loss(local(**same)) / 2
    assert ours < loss(fedavg(sizes, **same)) / 2
