"""Claims about neighbours: a loop over links, special cases, links found, costs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.algorithms.neighbours import models_in_use, neighbours
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.collaboration.evidence import surely_above_zero
from coterie.graphs import edges_of, gossip_matrix
from coterie.models import build, linear
from coterie.types import traffic_of
from support.calibrations import calibrated_mean
from support.federations import error
from support.linear_groups import (
    linear_clients,
    strangers,
    two_groups,
    without_validation,
)
from support.oracles import begun
from support.plain_clients import mine
from support.quadratics import EXACT, REAL, start, zeros
from support.rounds import ACTIVE, STEPS, simulate, train

NEVER = {"sure": 1e9}  # is a link dropped


def on(graph, n, **options):
    return neighbours(gossip_matrix(edges_of(graph, n), n), **options)


def trained(federation, graph, rounds, *, batch_size=0, active=None, **options):
    """States and infos, from zero."""
    simulation = simulate(federation, batch_size)
    algorithm = on(graph, len(federation), **options)
    return train(algorithm, simulation, zeros(federation), rounds, active)


def joined_by(info):
    """(N, N) whether the weights of a round join two clients."""
    return (info["weights"] != 0).fill_diagonal_(False)


# What a round does.


def test_on_a_complete_graph_shared_models_are_those_of_fedavg(classification):
    """Batches are full, because its minibatches come after those of the own model."""
    x, simulation = start(6, 26).mean(0).repeat(6, 1), simulate(classification)
    ours = train(on("complete", 6, **STEPS, **NEVER), simulation, x, 6)[0]
    sizes, uniform = classification.train.size, {**STEPS, "weighting": "uniform"}
    theirs = train(fedavg(sizes, **uniform), simulation, x, 6)[0]
    for here, there in zip(ours, theirs, strict=True):
        assert_close(here.shared, there.x, **EXACT)
        assert_close(here.shared_velocity, there.v, **EXACT)


def held_out_losses(federation, i, model):
    """The losses of client i's validation samples."""
    here = mine(federation, i, "validation")
    return (federation.features[here] @ model - federation.targets[here]).square()


def bounded_losses(federation, i, model, cap):
    """The losses of client i's validation samples, bounded by the cap."""
    return cap * (1 - torch.exp(-held_out_losses(federation, i, model) / cap))


def first_losses(federation):
    """The validation losses of zero models: mean squared targets."""
    parts = [mine(federation, i, "validation") for i in range(len(federation))]
    return [federation.targets[part].square().mean() for part in parts]


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_rounds_are_those_of_a_plain_loop_over_links(active):
    federation = two_groups(6, noise=1.0, validation=5)
    states, infos = trained(federation, "expander(3)", 9, active=active, sure=1.5)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()
    kept = [tuple(edge) for edge in edges_of("expander(3)", 6).tolist()]
    w, known = zeros(federation), {}
    cap = first_losses(federation)
    for t in range(9):
        u = w.clone()
        for i in who:
            index = mine(federation, i)
            x, y = federation.features[index], federation.targets[index]
            u[i] -= 0.1 * 2 * x.T @ (x @ u[i] - y) / len(x)
        assert_close(states[t + 1].tuned, u, **EXACT)
        links = [edge for edge in kept if edge[0] in who and edge[1] in who]
        degree = [sum(i in edge for edge in links) for i in range(6)]
        for edge in links if t >= 3 else ():
            d = []
            for i, k in (edge, edge[::-1]):
                half = bounded_losses(federation, i, (u[i] + u[k]) / 2, cap[i])
                d.append(half - bounded_losses(federation, i, u[i], cap[i]))
            d = torch.cat(d)
            said = torch.tensor([len(d), d.sum(), d.square().sum()], dtype=REAL)
            old = known.get(edge)
            known[edge] = said if old is None else 0.8 * old + 0.2 * said
            if float(surely_above_zero(*known[edge][:, None])) > 1.5:
                kept.remove(edge)
        w = u.clone()
        for i, k in links:
            if (i, k) in kept:
                weight = 1 / (1 + max(degree[i], degree[k]))
                w[i] += weight * (u[k] - u[i])
                w[k] += weight * (u[i] - u[k])
        assert_close(states[t + 1].shared, w, **EXACT)
        assert int(infos[t]["links"].mean()) == len(kept)
    assert 0 < len(kept) < 9


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_choices_are_those_of_plain_loops_over_losses_and_neighbours(active):
    rng = torch.Generator().manual_seed(0)
    theta = 1 + 0.3 * torch.randn(6, 3, generator=rng, dtype=REAL)
    federation = linear_clients(theta, noise=1.0, train=5, validation=4)
    states, infos = trained(federation, "expander(3)", 12, active=active, steps=4)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()
    cap, used = first_losses(federation), set()
    own, heard = torch.zeros(6, 4, dtype=REAL), torch.zeros(6, 4, dtype=REAL)
    for t, (before, after) in enumerate(pairwise(states)):
        told = heard.clone()
        for i in who:
            v, w, u = before.own[i], before.shared[i], before.tuned[i]
            found = [
                held_out_losses(federation, i, model)
                for model in (v, w, (w + u) / 2, u)
            ]
            losses = torch.tensor([calibrated_mean(one, cap[i]) for one in found])
            own[i] = 0.8 * own[i] + 0.2 * losses if t else losses
            told[i] = 0.8 * heard[i] + 0.2 * losses if t else losses
        heard = infos[t]["weights"] @ told
        for i in who:
            best = int((4 * own[i] + 30 * heard[i]).argmin())
            kept = bool(after.links.kept[i].any())
            assert int(after.choice[i]) == (best if kept else 0)
            used.add(int(after.choice[i]))
    assert len(used) > 2


def test_the_weights_are_doubly_stochastic_and_on_kept_links():
    states, infos = trained(two_groups(noise=0.5), "expander(4)", 8, steps=4)
    for info in infos:
        weights = info["weights"]
        assert_close(weights, weights.T)
        assert_close(weights.sum(1), torch.ones(8, dtype=REAL))
        assert int(joined_by(info).sum()) == 2 * int(info["links"].mean())
    assert_close(states[-1].shared, infos[-1]["weights"] @ states[-1].tuned, **EXACT)


# Special cases.


def test_where_all_are_alike_and_nothing_is_noise_it_is_fedavg():
    """All have the same samples: so it is also training alone."""
    theta = torch.ones(5, 3, dtype=REAL)
    federation = linear_clients(theta, noise=1.0, alike=True)
    states, infos = trained(federation, "complete", 8, **STEPS)
    simulation, sizes = simulate(federation), federation.train.size
    theirs = train(fedavg(sizes, **STEPS), simulation, zeros(federation), 8)[0]
    for here, there in zip(states, theirs, strict=True):
        assert_close(models_in_use(here), there.x, **EXACT)
    assert int(infos[-1]["links"].mean()) == 10


def test_where_all_are_alike_but_for_samples_links_stay_and_help():
    federation = linear_clients(torch.ones(8, 3, dtype=REAL), noise=1.0, train=6)
    states, infos = trained(federation, "expander(4)", 11, steps=3)
    assert int(infos[-1]["links"].mean()) == 16
    assert (states[-1].choice != 0).all()
    assert (
        error(federation, models_in_use(states[-1]))
        < error(federation, states[-1].own) / 2
    )


@pytest.mark.parametrize("graph", ["line", "complete"])
def test_two_who_differ_drop_their_link_and_train_alone_and_two_alike_keep_it(graph):
    best = torch.tensor([[5.0, 0.0, 0.0]], dtype=REAL)
    states, infos = trained(linear_clients(torch.cat([best, -best])), graph, 8, steps=4)
    assert torch.equal(infos[-1]["weights"], torch.eye(2, dtype=REAL))
    assert torch.equal(models_in_use(states[-1]), states[-1].own)
    alike = linear_clients(torch.cat([best, best]), noise=1.0, train=5)
    states, infos = trained(alike, graph, 8, steps=4)
    assert (infos[-1]["weights"] == 0.5).all()
    assert error(alike, models_in_use(states[-1])) < error(alike, states[-1].own)


def test_who_has_no_link_left_trains_alone_and_sends_nothing():
    federation = strangers(validation=30)
    states, infos = trained(federation, "complete", 12, steps=4)
    alone = train(local(steps=4), simulate(federation), zeros(federation), 12)[0]
    assert not states[-1].links.kept.any()
    assert torch.equal(models_in_use(states[-1]), alone[-1].x)
    assert (infos[-1]["alone"] == 1).all()
    oracle = simulate(federation).at(13)
    on("complete", 6, steps=4).step(states[-1], oracle, torch.Generator())
    assert traffic_of(oracle.sent).total == 0


@pytest.mark.parametrize("batch_size", [0, 4])
def test_links_within_groups_are_kept_and_each_group_ends_at_its_fedavg(batch_size):
    federation = two_groups(noise=0.5)
    same = federation.clusters[:, None] == federation.clusters
    states, infos = trained(federation, "complete", 24, steps=4, batch_size=batch_size)
    assert torch.equal(joined_by(infos[-1]), same.fill_diagonal_(False))
    assert (
        error(federation, models_in_use(states[-1]))
        < error(federation, states[-1].own) / 2
    )
    for c in (0, 1) if not batch_size else ():
        here = federation.clusters == c
        some = federation.select(here.nonzero()[:, 0])
        apart = fedavg(some.train.size, steps=4)
        limit = train(apart, simulate(some), zeros(some), 45)[0][-1].x
        assert_close(states[-1].shared[here], limit, rtol=0, atol=1e-3)


# Costs.


def test_models_and_a_few_numbers_go_both_ways_over_kept_links_and_no_others():
    federation = two_groups(noise=0.5)
    algorithm, simulation = on("expander(4)", 8, steps=4), simulate(federation)
    state, edges = begun(algorithm, zeros(federation)), edges_of("expander(4)", 8)
    allowed = {tuple(edge) for edge in edges.tolist()}
    left = len(allowed)
    for t in range(1, 9):
        oracle = simulation.at(t)
        state, info = algorithm.step(state, oracle, torch.Generator())
        links = torch.cat([sent.links for sent in oracle.sent]).sort(1).values.tolist()
        assert {tuple(link) for link in links} <= allowed
        assert traffic_of(oracle.sent) == (0, 2 * left * (3 + 8))
        left = int(info["links"].mean())
        assert_close(oracle.gradients, 2 * 4 * federation.train.size.double())
    assert left < len(allowed)


def test_personal_columns_stay_although_there_are_as_many_numbers():
    """The 8 numbers about a link are not a row of a model of 8 columns."""
    rng = torch.Generator().manual_seed(3)
    best = torch.randn(1, 8, generator=rng, dtype=REAL)
    federation = linear_clients(torch.cat([best, -best]), train=20)
    home = torch.arange(8) < 4
    module = build(lambda: linear((8,), 1, bias=False), 0, REAL)
    clients = Simulation(federation, module, batch_size=0, dtype=REAL, home=home)
    x, algorithm = start(2, 8), on("line", 2, lr=0.01, steps=4)
    states, _ = train(algorithm, clients, x, 5)
    assert torch.equal(states[1].shared[:, home], states[1].tuned[:, home])
    assert_close(*states[1].shared[:, ~home].unbind(), **EXACT)
    evidence = states[-1].links.evidence
    assert (evidence[0] > 0).all() and torch.equal(evidence[0], evidence[1])


# Input.


def test_without_any_validation_data_it_says_so():
    with pytest.raises(InputError, match="neighbours needs validation data, but"):
        trained(without_validation(two_groups()), "ring", 1)


def test_who_has_no_validation_data_goes_by_what_its_neighbours_find():
    federation = two_groups(noise=0.5, validation=30)
    same = federation.clusters[:, None] == federation.clusters
    few = without_validation(federation, 0, 7)
    states, infos = trained(few, "complete", 10, steps=4)
    joined = joined_by(infos[-1])
    joined[0, 7] = joined[7, 0] = False  # of whom nobody knows anything
    assert torch.equal(joined, same.fill_diagonal_(False))
    assert models_in_use(states[-1]).isfinite().all()
