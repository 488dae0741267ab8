"""Claims about IFCA: plain loops, limit cases, and clusters that must be found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.ifca import State, ifca
from coterie.algorithms.local import local
from coterie.clients.simulation import Simulation
from coterie.collaboration.best_fit import losses_of, training_losses
from coterie.data import synthetic
from coterie.optim.steps import sgd
from coterie.study.config import study_of
from coterie.study.setup import prepare
from coterie.types import ALONE
from support.federations import error, of_groups
from support.linear_groups import are_found, weights_told
from support.newcomers import before_newcomers, newcomers
from support.oracles import begun, with_verbs
from support.plain_clients import mine
from support.quadratics import EXACT, REAL, SAMPLES, D, hessians, quadratics, start
from support.rounds import ACTIVE, STEPS, drawn, loss, simulate, train


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_rounds_are_those_of_a_plain_loop(classification, active, weighting):
    sizes, simulation = classification.train.size, simulate(classification, 3)
    algorithm = ifca(
        sizes, clusters=3, lr=0.3, steps=2, weighting=weighting, weight_decay=0.01
    )
    w = start(3, 26)
    rows = w.expand(6, 3, 26)
    # A state after some rounds, where the models differ and all have chosen already.
    choice = [0] * 6
    state = begun(algorithm, start(6, 26))
    state = state._replace(w=rows, choice=torch.tensor(choice), t=4)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()
    for t in (1, 2):
        state, info = algorithm.step(state, simulation.at(t, active), seeds.generator())
        trained = {}
        for i in who:
            losses = [loss(classification, row, mine(classification, i)) for row in w]
            choice[i] = int(torch.stack(losses).argmin())
            x = w[choice[i]].clone().requires_grad_()
            optimiser = torch.optim.SGD([x], lr=0.3, weight_decay=0.01)
            for question in range(2):
                optimiser.zero_grad()
                # In the second program of a round, after that of losses.
                index = drawn(simulation, t, i, question, program=1)
                loss(classification, x, index).backward()
                optimiser.step()
            trained[i] = x.detach()
        w = w.clone()
        for c in range(3):
            members = [i for i in who if choice[i] == c]
            share = {i: float(sizes[i]) if weighting == "samples" else 1.0 for i in who}
            total = sum(share[i] for i in members)
            if members:
                w[c] = sum(share[i] / total * trained[i] for i in members)
        assert_close(state.w, w.repeat(6, 1, 1), **EXACT)
        assert state.choice.tolist() == choice
        assert info["clusters"] == len({choice[i] for i in who}) > 1


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_one_cluster_is_fedavg(classification, active):
    sizes, simulation = classification.train.size, simulate(classification, 3)
    x = start(6, 26)
    algorithm = ifca(sizes, clusters=1, **STEPS)
    ours, infos = train(algorithm, simulation, x, 4, active)
    theirs, expected = train(fedavg(sizes, **STEPS), simulation, x, 4, active)
    for here, there in zip(ours, theirs, strict=True):
        found = algorithm.personal(here, simulation.at(4, purpose="use"))
        # With the same minibatches; only the average is another product of matrices.
        assert_close(found, there.x, **EXACT)
        assert_close(here.v, there.v, **EXACT)
    # And each says that it chose the one model, and learns how many did.
    here = 6 if active is None else 4
    assert infos[-1]["sent"] == expected[-1]["sent"] + here * (1 + 1)
    there = torch.ones(6, dtype=torch.bool) if active is None else active
    assert torch.equal(infos[0]["member"], torch.where(there, 0, ALONE))


@with_verbs
class Told:
    """An oracle with losses |w - theta_i|^2 whose clients do not train."""

    def __init__(self, theta: torch.Tensor, active: torch.Tensor | None = None) -> None:
        self.theta = theta
        everybody = torch.ones(len(theta), dtype=torch.bool)
        self.active = everybody if active is None else active

    def each(self, program, *rows, **options):
        if program is sgd:
            return rows
        assert program is losses_of
        found = (rows[1] - self.theta[:, None]).square().sum(2)
        return (torch.where(self.active[:, None], found, rows[0]),)


def first_models(x: torch.Tensor, oracle: Told, **options) -> torch.Tensor:
    """The models from which the first round began."""
    algorithm = ifca(torch.ones(len(x)), **options)
    state, _ = algorithm.step(begun(algorithm, x), oracle, seeds.generator(2))
    assert (state.w == state.w[0]).all()
    return state.w[0]


def noises(count: int, clusters: int) -> list[torch.Tensor]:
    """The noise of the first round, minus its mean over the clusters."""
    rng = seeds.generator(2)
    draws = [torch.randn(clusters, D, generator=rng, dtype=REAL) for _ in range(count)]
    return [draw - draw.mean(0) for draw in draws]


def test_models_start_around_the_mean_as_far_as_its_entries_are_large():
    oracle = Told(start())
    w = start().mean(0)
    found = first_models(start(), oracle, clusters=3, starts=1, spread=0.2)
    assert_close(found, w * (1 + 0.2 * noises(1, 3)[0]), **EXACT)
    assert_close(found.mean(0), w, **EXACT)
    zero = torch.zeros(6, D, dtype=REAL)
    found = first_models(zero, oracle, clusters=3, starts=1, spread=0.2)
    assert_close(found, 0.2 * noises(1, 3)[0], **EXACT)


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_of_several_starts_the_one_is_kept_where_choosing_matters_most(active):
    theta = start()
    zero = torch.zeros(6, D, dtype=REAL)
    found = first_models(zero, Told(theta, active), clusters=2, starts=8, spread=0.2)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()
    gains = []
    for noise in noises(8, 2):
        losses = [
            [float((0.2 * e - theta[i]).square().sum()) for e in noise] for i in who
        ]
        best_single = min(sum(column) for column in zip(*losses, strict=True))
        gains.append(best_single - sum(min(row) for row in losses))
    kept = max(range(8), key=lambda draw: gains[draw])
    assert kept > 0
    assert_close(found, 0.2 * noises(8, 2)[kept], **EXACT)


def linear_clusters(seed):
    """Two clusters of six clients, with few noisy samples of a linear response."""
    law = {"clusters": 2, "dimension": 5, "spread": 3.0, "noise": 1.0}
    return of_groups(synthetic.linear(clients=12, samples=14, seed=seed, **law))


def test_several_starts_make_it_rare_that_all_choose_the_same_model_for_good():
    # From afar both clusters lie in the same direction, where the same model is better.
    away = torch.full((12, 5), 3.0, dtype=REAL)
    found = {1: 0, 10: 0}
    for seed in range(6):
        federation = linear_clusters(seed)
        simulation, sizes = simulate(federation), federation.train.size
        for starts in found:
            algorithm = ifca(sizes, starts=starts, steps=5)
            state = train(algorithm, simulation, away, 8)[0][-1]
            found[starts] += are_found(state.choice, federation.clusters)
    assert found[1] < 5
    assert found[10] == 6


def test_ifca_finds_the_clusters_and_beats_local_and_fedavg():
    federation = linear_clusters(0)
    simulation, sizes = simulate(federation), federation.train.size
    zero = torch.zeros(12, 5, dtype=REAL)
    algorithm = ifca(sizes)
    states, infos = train(algorithm, simulation, zero, 60)
    ours = algorithm.personal(states[-1], simulation.at(60, purpose="use"))
    alone = train(local(), simulation, zero, 60)[0][-1].x
    together = train(fedavg(sizes), simulation, zero, 60)[0][-1].x
    assert are_found(states[-1].choice, federation.clusters)
    same = (federation.clusters[:, None] == federation.clusters).to(REAL)
    assert_close(weights_told(infos[-1], sizes), same / 6, **EXACT)
    # Six clients' samples leave a sixth of the variance, and less where 12 samples for
    # 5 parameters are few; FedAvg ends between the clusters.
    assert error(federation, ours) < error(federation, alone) / 4
    assert error(federation, ours) < error(federation, together) / 10


def test_ifca_finds_who_names_digits_differently():
    tables = {
        "data": {"name": "digits"},
        "split": {"name": "label_swap", "clients": 8, "max_samples": 400},
        "model": {"name": "mlp", "hidden": [16]},
        "run": {"rounds": 1},
        "algorithm": [{"name": "local"}],
    }
    setup = prepare(study_of(tables), 0)
    federation, x = setup.federation, setup.x
    simulation = Simulation(federation, setup.module, batch_size=8)
    options = {"lr": 0.3, "steps": 20}

    def accuracy(algorithm):
        states, _ = train(algorithm, simulation, x, 7)
        models = algorithm.personal(states[-1], simulation.at(7, purpose="use"))
        return float(simulation.evaluate(models, "test")["accuracy"].mean()), states

    ours, states = accuracy(ifca(federation.train.size, **options))
    assert are_found(states[-1].choice, federation.clusters)
    assert ours > accuracy(local(**options))[0] + 0.03
    assert ours > accuracy(fedavg(federation.train.size, **options))[0] + 0.2


def test_before_the_first_round_everybody_has_the_mean_of_the_starting_models():
    simulation = simulate(quadratics())
    algorithm = ifca(SAMPLES, clusters=3)
    found = algorithm.personal(
        begun(algorithm, start()), simulation.at(0, purpose="use")
    )
    assert_close(found, start().mean(0).expand(6, D), **EXACT)


def settled(**options) -> tuple[State, torch.Tensor]:
    """Three models, two of them the best for some client, and the best of each."""
    algorithm = ifca(SAMPLES, clusters=3, **options)
    a, b = hessians(quadratics())
    best = torch.linalg.solve(a, b[..., None])[..., 0]
    w = torch.stack([best[:3].mean(0), best[3:].mean(0), best[0] + 100])
    rows = w.expand(6, 3, D)
    losses = training_losses(simulate(quadratics()).at(0), rows)
    return begun(algorithm, start())._replace(w=rows, t=2), losses.argmin(1)


def test_models_to_use_are_chosen_anew_by_training_data_alone():
    state, best = settled()
    stale = state._replace(choice=torch.full((6,), 2))
    algorithm = ifca(SAMPLES, clusters=3)
    federation = quadratics()
    spoilt = federation.features.clone()
    for part in (federation.validation, federation.test):
        spoilt[part.index] = torch.nan
    blind = simulate(replace(federation, features=spoilt))
    assert len(best.unique()) == 2
    found = algorithm.personal(stale, blind.at(3, purpose="use"))
    assert torch.equal(found, state.w[0][best])
    # Clients that cannot be asked keep their choice.
    found = algorithm.personal(stale, blind.at(3, ACTIVE, purpose="use"))
    assert torch.equal(found, state.w[0][torch.where(ACTIVE, best, 2)])


def test_a_buffer_is_kept_with_a_model_and_dropped_with_a_change():
    state, best = settled(momentum=0.9)
    a, b = hessians(quadratics())
    full = torch.ones(6, D, dtype=REAL)
    before = torch.where(torch.arange(6) < 3, best, 2)
    algorithm = ifca(SAMPLES, clusters=3, momentum=0.9)
    after, _ = algorithm.step(
        state._replace(choice=before, v=full),
        simulate(quadratics()).at(1, ACTIVE),
        seeds.generator(0),
    )
    g = torch.einsum("nij,nj->ni", a, state.w[0][best]) - b
    kept = torch.tensor([1, 1, 1, 0, 0, 0], dtype=REAL)[:, None]
    expected = torch.where(ACTIVE[:, None], g + 0.9 * kept * full, full)
    assert_close(after.v, expected, **EXACT)
    assert after.choice.tolist() == torch.where(ACTIVE, best, before).tolist()


def test_a_model_that_nobody_chooses_stays():
    state, best = settled()
    algorithm = ifca(SAMPLES, clusters=3)
    oracle = simulate(quadratics()).at(1)
    after, info = algorithm.step(state, oracle, seeds.generator(0))
    assert sorted(best.unique().tolist()) == [0, 1]
    assert torch.equal(after.w[:, 2], state.w[:, 2])
    assert (after.w[:, :2] != state.w[:, :2]).all()
    assert info["clusters"] == 2


def test_labels_tell_who_shares_a_model():
    state, best = settled()
    algorithm = ifca(SAMPLES, clusters=3)
    oracle = simulate(quadratics()).at(1, ACTIVE)
    _, info = algorithm.step(state, oracle, seeds.generator(0))
    expected = torch.eye(6, dtype=REAL)  # who never chose shares with nobody
    for i in range(6):
        if ACTIVE[i]:
            mates = (SAMPLES * (ACTIVE & (best == best[i]))).to(REAL)
            expected[i] = mates / mates.sum()
    assert_close(weights_told(info, SAMPLES), expected, **EXACT)


def test_all_models_go_down_and_one_comes_up():
    """Models of a random start need not travel: the seed is known to everybody."""
    simulation = simulate(quadratics())
    _, infos = train(
        ifca(SAMPLES, clusters=3, starts=5), simulation, start(), 3, ACTIVE
    )
    # Besides models: how many chose each; in the first round, for each of five starts,
    # losses at three models and the least.
    numbers = 3 + 3
    each_start = 2 * (3 + 1)
    later = 4 * ((1 + 3) * D + numbers)
    assert [info["sent"] for info in infos] == [
        later + 4 * 5 * each_start,
        later,
        later,
    ]


def test_newcomers_get_the_model_that_fits_them_best():
    algorithm, state = before_newcomers(ifca, 5, clusters=3)
    found = algorithm.welcome(state, newcomers().at(1, purpose="use"))
    a, b = hessians(quadratics())
    for j, i in enumerate((4, 5)):
        losses = [w @ a[i] @ w / 2 - b[i] @ w for w in state.w[0]]
        best = int(torch.stack(losses).argmin())
        assert torch.equal(found[j], state.w[0, best])
