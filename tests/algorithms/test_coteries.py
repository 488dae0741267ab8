"""Claims about coteries in rounds: special cases, groups found, costs, bad input."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.coteries import coteries, in_use
from coterie.algorithms.coteries_client import sharing
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.collaboration.divisions import ALL_RAW, ALL_TUNED, OWN, RAW, TUNED
from coterie.engine.rounds import participants
from coterie.types import ALONE, EVERYBODY, traffic_of
from support.linear_groups import (
    are_found,
    linear_clients,
    strangers,
    two_groups,
    weights_told,
    without_validation,
)
from support.oracles import begun
from support.plain_clients import mine
from support.quadratics import (
    ACTIVE,
    EXACT,
    REAL,
    STEPS,
    error,
    simulate,
    start,
    train,
    zeros,
)

NEVER = {"sure": 1e9}  # groups divide


def trained(federation, rounds, *, batch_size=0, active=None, **options):
    """The last state, from zero."""
    algorithm = coteries(federation.train.size, **options)
    simulation = simulate(federation, batch_size)
    return train(algorithm, simulation, zeros(federation), rounds, active)[0][-1]


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_model_of_one_group_is_that_of_fedavg(classification, active, weighting):
    """With full batches, as its minibatches come after those of the own model."""
    x, simulation = start(6, 26), simulate(classification)
    sizes, options = classification.train.size, {**STEPS, "weighting": weighting}
    ours = train(coteries(sizes, **options, **NEVER), simulation, x, 6, active)[0]
    theirs = train(fedavg(sizes, **options), simulation, x, 6, active)[0]
    for here, there in zip(ours, theirs, strict=True):
        assert_close(here.group, there.x, **EXACT)
        assert_close(here.group_velocity, there.v, **EXACT)


def test_one_client_trains_alone():
    federation = linear_clients(torch.ones(1, 3, dtype=REAL), noise=1.0)
    simulation, x = simulate(federation), zeros(federation)
    algorithm = coteries(federation.train.size, **STEPS)
    states, infos = train(algorithm, simulation, x, 8)
    alone = train(local(**STEPS), simulation, x, 8)[0]
    for here, there in zip(states, alone, strict=True):
        assert torch.equal(in_use(here), there.x)
    assert all(float(weights_told(info, torch.ones(1))) == 1 for info in infos)


def test_where_all_are_alike_and_nothing_is_noise_it_is_fedavg():
    """All have the same samples: so it is also training alone, and a model of all."""
    theta = torch.ones(5, 3, dtype=REAL)
    federation = linear_clients(theta, noise=1.0, alike=True)
    simulation, x = simulate(federation), zeros(federation)
    sizes = federation.train.size
    states = train(coteries(sizes, **STEPS), simulation, x, 12)[0]
    theirs = train(fedavg(sizes, **STEPS), simulation, x, 12)[0]
    for here, there in zip(states, theirs, strict=True):
        assert_close(in_use(here), there.x, **EXACT)
        assert (here.standing.member == 0).all()


def test_where_all_are_alike_but_for_samples_they_stay_together():
    """And nobody uses the model that it trained alone."""
    theta = torch.ones(8, 3, dtype=REAL)
    federation = linear_clients(theta, noise=1.0, train=6)
    state = trained(federation, 16, steps=3)
    assert (state.standing.member == 0).all()
    assert (state.standing.choice != OWN).all()
    assert error(federation, in_use(state)) < error(federation, state.own) / 2


def test_strangers_without_noise_end_at_the_models_of_local_training():
    federation = strangers()
    simulation, x = simulate(federation), zeros(federation)
    states, infos = train(coteries(federation.train.size, steps=4), simulation, x, 60)
    alone = train(local(steps=4), simulation, x, 60)[0]
    for here, there in list(zip(states, alone, strict=True))[10:]:
        # Who does not use its own model is a group by itself, which is as good.
        own = here.standing.choice == OWN
        members = torch.bincount(here.standing.member)[here.standing.member]
        assert (own | (members == 1)).all()
        assert torch.equal(in_use(here)[own], there.x[own])
    for info in infos[10:]:
        told = weights_told(info, federation.train.size)
        assert torch.equal(told, torch.eye(6, dtype=REAL))
    # On the way to the same optimum, of which a group by itself began some rounds late:
    # a round still moves models by 4e-4.
    assert_close(in_use(states[-1]), alone[-1].x, rtol=0, atol=0.01)


@pytest.mark.parametrize("batch_size", [0, 4])
def test_two_groups_are_found_and_each_ends_at_its_fedavg(batch_size):
    federation = two_groups(noise=0.5)
    state = trained(federation, 18, steps=4, batch_size=batch_size)
    standing = state.standing
    assert are_found(standing.member, federation.clusters)
    assert standing.settled.all()
    assert torch.isin(standing.choice, torch.tensor([RAW, TUNED])).all()
    assert error(federation, in_use(state)) < error(federation, state.own) / 2
    for c in (0, 1) if not batch_size else ():
        here = federation.clusters == c
        some = federation.select(here.nonzero()[:, 0])
        apart = fedavg(some.train.size, steps=4)
        limit = train(apart, simulate(some), zeros(some), 25)[0][-1].x
        assert_close(state.group[here], limit, rtol=0, atol=1e-3)


def test_groups_are_found_with_some_of_the_clients_in_a_round():
    federation = two_groups(10, noise=0.5)
    algorithm, simulation = (
        coteries(federation.train.size, steps=4),
        simulate(federation, 4),
    )
    state = begun(algorithm, zeros(federation))
    for t in range(1, 18):
        active = participants(10, 0.5, 0, t)
        state, info = algorithm.step(state, simulation.at(t, active), seeds.generator())
    assert are_found(state.standing.member, federation.clusters)
    assert torch.equal(info["member"], state.standing.member)
    assert error(federation, in_use(state)) < error(federation, state.own) / 2


def test_two_clients_who_differ_go_apart_and_two_who_do_not_stay():
    best = torch.tensor([[5.0, 0.0, 0.0]], dtype=REAL)
    apart = trained(linear_clients(torch.cat([best, -best])), 12, steps=4)
    assert apart.standing.member.unique().tolist() == [0, 1]
    assert torch.equal(in_use(apart), apart.own)
    alike = linear_clients(torch.cat([best, best]), noise=1.0, train=5)
    together = trained(alike, 12, steps=4)
    assert together.standing.member.tolist() == [0, 0]
    assert error(alike, in_use(together)) < error(alike, together.own)


@pytest.mark.parametrize(("validation", "seed"), [(1, 0), (2, 1)])
def test_clients_of_one_or_two_samples_find_their_groups(validation, seed):
    """In one dimension, where one sample with little noise tells the side.

    In about a quarter of such draws one client of twenty goes elsewhere.
    """
    sizes, few = [1, 2, 2, 1] * 5, {"validation": validation, "noise": 0.1}
    federation = two_groups(20, d=1, train=sizes, seed=seed, **few)
    state = trained(federation, 14, steps=2)
    assert are_found(state.standing.member, federation.clusters)
    assert error(federation, in_use(state)) < error(federation, state.own)


def test_who_has_no_validation_data_is_of_a_group_and_uses_its_model():
    federation = two_groups(noise=0.5)
    state = trained(without_validation(federation, 0, 7), 14, steps=4)
    assert are_found(state.standing.member, federation.clusters)
    assert state.standing.choice[[0, 7]].tolist() == [RAW, RAW]
    assert in_use(state).isfinite().all()


def test_without_any_validation_data_it_says_so():
    with pytest.raises(InputError, match="coteries chooses by validation data, but no"):
        trained(without_validation(two_groups()), 1)


def test_what_cannot_be_meant_is_refused():
    sizes = torch.ones(3)
    with pytest.raises(InputError, match=r"`sure` must be greater than 0, got 0\.0"):
        coteries(sizes, sure=0.0)
    with pytest.raises(InputError, match="`steps` must be at least 1, got 0"):
        coteries(sizes, steps=0)
    with pytest.raises(InputError, match="`weighting` must be one of samples, uniform"):
        coteries(sizes, weighting="sample")
    with pytest.raises(InputError, match=r"`sizes` must have shape \(6,\)"):
        begun(coteries(sizes), start())


def alone(federation, client, w, steps, lr=0.1):
    """After so many full gradient steps of a client."""
    index = mine(federation, client)
    x, y = federation.features[index], federation.targets[index]
    for _ in range(steps):
        w = w - lr * 2 * x.T @ (x @ w - y) / len(x)
    return w


@functools.cache
def before_newcomers():
    """Ten clients, and the state after twelve rounds without the last two."""
    everybody = two_groups(10, noise=0.5)
    return everybody, trained(everybody.select(torch.arange(8)), 12, steps=4)


@pytest.mark.parametrize("used", [(RAW, TUNED), (TUNED, OWN), (OWN, RAW)], ids=str)
def test_newcomers_get_their_groups_model_and_use_it_as_most_there_do(used):
    everybody, state = before_newcomers()
    standing = state.standing
    assert are_found(standing.member, everybody.clusters[:8])
    choice = torch.tensor(used)[torch.arange(8) % 2]
    choice[:2] = TUNED  # a minority
    state = state._replace(place=state.place._replace(choice=choice))
    algorithm = coteries(everybody.train.size, steps=4)
    later = simulate(everybody.select(torch.tensor([8, 9])))
    found = algorithm.welcome(state, later.at(12, purpose="welcome"))
    for j, how in enumerate(used):
        steps = {RAW: 0, TUNED: 4, OWN: 12 * 4}[how]
        expected = alone(everybody, 8 + j, state.group[j], steps)
        assert_close(found[j], expected, **EXACT)


def test_a_round_tells_groups_and_whose_models_are_used():
    """Own models by all choices; everybody's are those of probation."""
    member = torch.tensor([0, 0, 2, 2, 2])
    choice = torch.tensor([OWN, RAW, TUNED, ALL_RAW, ALL_TUNED])
    told = sharing(member, choice)
    assert told["uses"].tolist() == [ALONE, 0, 2, EVERYBODY, EVERYBODY]
    assert told["alone"].tolist() == [1, 0, 0, 0, 0]
    found = weights_told(told, torch.tensor([1, 3, 2, 1, 1]))
    # All members count in a group's model, also those who use another.
    expected = [[8, 0, 0, 0, 0], [2, 6, 0, 0, 0], [0, 0, 4, 2, 2]]
    expected += [[1, 3, 2, 1, 1]] * 2
    assert_close(found, torch.tensor(expected, dtype=REAL) / 8, **EXACT)


@functools.cache
def costs():
    """States, and gradients and values sent, round after round of three steps."""
    federation, rounds, options = two_groups(noise=0.5), 14, {"steps": 3}
    algorithm, simulation = (
        coteries(federation.train.size, **options),
        simulate(federation, 4),
    )
    states, found = [begun(algorithm, zeros(federation))], []
    for t in range(1, rounds + 1):
        active = participants(len(federation), 0.75, 0, t)
        oracle = simulation.at(t, active)
        states.append(algorithm.step(states[-1], oracle, seeds.generator())[0])
        found.append((oracle.gradients, traffic_of(oracle.sent), active))
    return states, found


def test_it_costs_two_local_trainings_and_three_on_probation():
    states, found = costs()
    factors = []
    for before, (gradients, _, active) in zip(states, found, strict=False):
        factors.append(3 if int(before.standing.probation[0]) >= 0 else 2)
        assert_close(gradients, factors[-1] * 3 * 4 * active.double())
    assert factors.count(3) == 3


def test_what_a_round_sends_is_counted():
    """Models beside a few numbers: the group's up and down; its update and two halves
    where it may divide; everybody's on probation; and its sibling for who was away."""
    d, sent = 3, []
    states, found = costs()
    for t, (_, traffic, active) in enumerate(found):
        standing = states[t + 1].standing
        # The half taken and a report go up; place and news come down, with the number
        # of groups and whether anybody of one's own is there. The report of who learns
        # with whom needs nothing more.
        numbers = (1 + 43) + (5 + 6) + 2
        models = 2
        waits = bool((standing.sibling >= 0).any())
        large = torch.bincount(standing.member)[standing.member] > 1
        due = large & (standing.sibling < 0) & (standing.rest <= t)
        if int(standing.probation[0]) >= 0:
            models += 2
        if t > 0 and due.any():
            models, numbers = models + 3, numbers + 1 + 1
        if waits:
            models, numbers = models + 2, numbers + 1
        sent.append(models)
        assert traffic == (int(active.sum()) * (models * d + numbers), 0)
    assert len(set(sent)) > 3  # all of these
    # FedAvg sends two: here are at most four times as many on the whole.
    assert sum(sent) / len(sent) < 4 * 2


@pytest.mark.parametrize("scale", [1e25, math.inf, math.nan])
def test_updates_that_are_not_finite_propose_no_halves(scale):
    """One client whose features are out of range ends no round with an exception."""
    federation = two_groups(noise=0.5)
    features = federation.features.clone()
    features[mine(federation, 1)] *= scale
    spoilt = replace(federation, features=features)
    algorithm, simulation = coteries(spoilt.train.size, steps=2), simulate(spoilt, 4)
    state = begun(algorithm, zeros(spoilt))
    for t in range(1, 5):
        state, _ = algorithm.step(state, simulation.at(t), seeds.generator())
    others = torch.arange(len(spoilt)) != 1
    assert state.own[others].isfinite().all()
