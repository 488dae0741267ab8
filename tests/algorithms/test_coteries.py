"""Claims about coteries in rounds: special cases, groups found, costs, bad input."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.coteries import coteries, group_of, halves_of, in_use
from coterie.algorithms.coteries_client import (
    GROUP,
    HALFWAY,
    OWN,
    TUNED,
    follow,
    limit_update,
    sharing,
)
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.collaboration.divisions import CONTEST, PIECES, REST, TRIAL
from coterie.conformance import check_algorithm
from coterie.conformance.cases import agree
from coterie.engine.rounds import participants
from coterie.records import pack, unpack
from coterie.types import ALONE, traffic_of
from support.federations import error
from support.linear_groups import (
    are_found,
    four_groups,
    linear_clients,
    strangers,
    two_groups,
    weights_told,
    without_validation,
)
from support.oracles import begun
from support.plain_clients import mine
from support.quadratics import EXACT, REAL, start, zeros
from support.refusals import refuses
from support.rounds import ACTIVE, STEPS, simulate, train


def measured(federation, batch_size=0):
    """Clients that know what their own step sizes depend on."""
    simulation = simulate(federation, batch_size)
    simulation.measure(zeros(federation))
    return simulation


def trained(federation, rounds, *, batch_size=0, active=None, **options):
    """The last state, from zero."""
    algorithm = coteries(federation.train.size, **options)
    simulation = measured(federation, batch_size)
    return train(algorithm, simulation, zeros(federation), rounds, active)[0][-1]


def with_some(federation, rounds, share, **options):
    """The same, where a share takes part in a round."""
    algorithm = coteries(federation.train.size, **options)
    simulation, state = simulate(federation, 4), begun(algorithm, zeros(federation))
    for t in range(1, rounds + 1):
        active = participants(len(federation), share, 0, t)
        state, info = algorithm.step(state, simulation.at(t, active), seeds.generator())
    assert torch.equal(info["member"], state.place.member)
    return state


# Special cases.


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_in_a_rest_the_model_of_one_group_is_that_of_fedavg(active, weighting):
    """All have the same samples, so that there are no sides: the rest goes on."""
    theta = torch.ones(6, 3, dtype=REAL)
    federation = linear_clients(theta, noise=1.0, alike=True)
    simulation, x = simulate(federation), zeros(federation)
    sizes, options = federation.train.size, {**STEPS, "weighting": weighting}
    ours = train(coteries(sizes, **options), simulation, x, 12, active)[0]
    theirs = train(fedavg(sizes, **options), simulation, x, 12, active)[0]
    for here, there in zip(ours, theirs, strict=True):
        assert here.server.clock.phase == REST
        assert_close(group_of(here), there.x, **EXACT)
        assert_close(here.group_velocity, there.v, **EXACT)


def test_the_first_round_is_that_of_fedavg(classification):
    """Of clients that differ, from different models, weighted by their samples."""
    x, simulation = start(6, 26), simulate(classification)
    sizes = classification.train.size
    ours = train(coteries(sizes, **STEPS), simulation, x, 1)[0][-1]
    theirs = train(fedavg(sizes, **STEPS), simulation, x, 1)[0][-1]
    assert_close(group_of(ours), theirs.x, **EXACT)


def test_where_all_have_the_same_samples_everybody_uses_the_model_of_fedavg():
    federation = linear_clients(torch.ones(5, 3, dtype=REAL), noise=1.0, alike=True)
    simulation, x = simulate(federation), zeros(federation)
    sizes = federation.train.size
    states = train(coteries(sizes, **STEPS), simulation, x, 12)[0]
    theirs = train(fedavg(sizes, **STEPS), simulation, x, 12)[0]
    for here, there in zip(states, theirs, strict=True):
        assert_close(in_use(here), there.x, **EXACT)
        assert (here.place.member == 0).all()


def test_one_client_trains_alone():
    federation = linear_clients(torch.ones(1, 3, dtype=REAL), noise=1.0)
    simulation, x = simulate(federation), zeros(federation)
    states, infos = train(coteries(federation.train.size, **STEPS), simulation, x, 8)
    alone = train(local(**STEPS), simulation, x, 8)[0]
    for here, there in zip(states, alone, strict=True):
        assert_close(in_use(here), there.x, **EXACT)
        assert here.server.clock.phase == REST
    assert all(float(weights_told(info, torch.ones(1))) == 1 for info in infos)


def test_where_all_are_alike_but_for_samples_they_stay_together():
    """And nobody uses the model that it trained alone."""
    theta = torch.ones(8, 3, dtype=REAL)
    federation = linear_clients(theta, noise=1.0, train=6)
    state = trained(federation, 16, steps=3)
    assert (state.place.member == 0).all()
    assert (state.choice != OWN).all()
    assert error(federation, in_use(state)) < error(federation, state.own) / 2


def test_strangers_without_noise_use_their_own_models():
    federation = strangers()
    simulation, x = simulate(federation), zeros(federation)
    states, infos = train(coteries(federation.train.size, steps=4), simulation, x, 20)
    alone = train(local(steps=4), simulation, x, 20)[0]
    for here, there in list(zip(states, alone, strict=True))[3:]:
        assert torch.equal(in_use(here), there.x)
    for info in infos[3:]:
        told = weights_told(info, federation.train.size)
        assert torch.equal(told, torch.eye(6, dtype=REAL))


def test_with_looks_in_every_round_it_keeps_the_promises_of_all_methods():
    """Usual steps are so few that four rounds have one look; of eight, all have one.

    Ten rounds from the known optimum 0.0011 of the way is left, and not 0.001: offsets
    are means of four rounds, and choices are by losses of the past.
    """
    options = {"steps": 8}
    for found in check_algorithm(coteries, options=options, skip=["known_optimum"]):
        assert found.face == "time" or found.outcome != "failed", found


# Groups.


@pytest.mark.parametrize("batch_size", [0, 4])
def test_two_groups_are_found_and_each_ends_at_its_fedavg(batch_size):
    federation = two_groups(noise=0.5)
    state = trained(federation, 18, steps=4, batch_size=batch_size)
    assert are_found(state.place.member, federation.clusters)
    assert state.server.clock.settled
    assert (state.choice != OWN).all()
    assert error(federation, in_use(state)) < error(federation, state.own) / 2
    for c in (0, 1) if not batch_size else ():
        here = federation.clusters == c
        some = federation.select(here.nonzero()[:, 0])
        apart = fedavg(some.train.size, steps=4)
        limit = train(apart, simulate(some), zeros(some), 25)[0][-1].x
        assert_close(group_of(state)[here], limit, rtol=0, atol=0.02)


def test_three_groups_are_found_one_after_the_other():
    best = 3 * torch.eye(3, dtype=REAL)
    federation = linear_clients(best.repeat(4, 1), noise=0.5)
    state = trained(federation, 24, steps=4)
    assert are_found(state.place.member, federation.clusters)
    assert sorted(state.place.member.unique().tolist()) == [0, 1, 2]


def test_groups_are_found_with_some_of_the_clients_in_a_round():
    """Also where somebody was away in the trial: it chooses its half later.

    A group may divide once too often: with 24 seeds this happened once. It did not
    happen before more than two pieces could be tried.
    """
    found, errors = [], []
    for seed in range(8):
        federation = two_groups(10, noise=0.5, seed=seed)
        state = with_some(federation, 40, 0.5, steps=6)
        found.append(are_found(state.place.member, federation.clusters))
        # Nobody is in a group with a client of the other one.
        for c in state.place.member.unique():
            assert len(federation.clusters[state.place.member == c].unique()) == 1
        errors.append([error(federation, x) for x in (in_use(state), state.own)])
    assert sum(found) >= 7
    ours, alone = torch.tensor(errors).sum(0)
    assert ours < alone / 2


def test_four_groups_are_found_at_once():
    """One contest of four pieces, and nobody was in a half of two groups before."""
    federation = four_groups()
    algorithm = coteries(federation.train.size, steps=10)
    states = train(algorithm, simulate(federation), zeros(federation), 14)[0]
    counts = [len(state.place.member.unique()) for state in states]
    assert set(counts) == {1, 4}
    assert PIECES in [state.server.clock.phase for state in states]
    assert are_found(states[-1].place.member, federation.clusters)
    assert (states[-1].choice != OWN).all()


def test_in_a_contest_of_pieces_a_client_has_the_mean_of_its_own_piece():
    """By a plain loop: full gradients of the model of its piece, and of the whole."""
    federation = four_groups()
    algorithm = coteries(federation.train.size, steps=10)
    states = train(algorithm, simulate(federation), zeros(federation), 6)[0]
    pairs = [
        (before, after)
        for before, after in itertools.pairwise(states)
        if before.server.clock.phase == after.server.clock.phase == PIECES
    ]
    assert pairs
    before, after = pairs[-1]
    piece = before.place.pair
    halves, new = halves_of(before), halves_of(after)
    assert halves.shape == (16, 1, 16) and not before.pick.any()
    ends = [alone(federation, i, halves[i, 0], 10) for i in range(16)]
    for i in range(16):
        here = (piece == piece[i]).nonzero()[:, 0].tolist()
        mean = torch.stack([ends[k] for k in here]).mean(0)
        assert_close(new[i, 0], mean, **EXACT)
    wholes = [alone(federation, i, group_of(before)[i], 10) for i in range(16)]
    assert_close(group_of(after)[0], torch.stack(wholes).mean(0), **EXACT)


def test_who_was_away_in_the_first_round_has_samples_too():
    """A coordinator learns later how many samples clients hold out."""
    federation = two_groups(10, noise=0.5)
    first = participants(10, 0.5, 0, 1)
    state = with_some(federation, 12, 0.5, steps=4)
    assert not first.all()
    assert state.server.samples.tolist() == [12.0] * 10


def spoilt(federation, client, scale):
    """Where the training features of one client are so much larger."""
    features = federation.features.clone()
    features[mine(federation, client)] *= scale
    return replace(federation, features=features)


@pytest.mark.parametrize("scale", [1e3, 1e25, 1e200, math.inf, math.nan])
def test_garbage_of_one_client_does_not_keep_others_from_dividing(scale):
    federation = two_groups(10, noise=0.5)
    state = trained(spoilt(federation, 0, scale), 16, steps=4)
    others = torch.arange(10) != 0
    assert are_found(state.place.member[others], federation.clusters[others])
    found = in_use(state)[others]
    assert found.isfinite().all()
    best, own = federation.optima[others], state.own[others]
    assert (found - best).square().mean() < (own - best).square().mean() / 2


def test_a_client_whose_own_model_is_lost_does_not_use_it():
    """Nor does it tell others that own models have no losses."""
    federation = two_groups(10, noise=0.5)
    state = trained(spoilt(federation, 0, math.nan), 16, steps=4)
    assert state.own[0].isnan().all()
    assert state.choice[0] != OWN
    assert in_use(state).isfinite().all()
    assert state.ballot.told[0, OWN] > state.ballot.told[0, GROUP]


def test_a_client_that_differs_uses_a_model_of_its_own():
    """Its own model, or that of a group by itself; the others learn together."""
    best = torch.tensor([2.0, 1.0, -1.0], dtype=REAL)
    theta = torch.cat([best.repeat(7, 1), -3 * best[None]])
    federation = linear_clients(theta, noise=0.5)
    state = trained(federation, 16, steps=4)
    member, choice = state.place.member, state.choice
    assert int(choice[7]) == OWN or (member != member[7]).sum() == 7
    assert len(member[:7].unique()) == 1
    assert (choice[:7] != OWN).all()
    gap = (in_use(state) - theta).square().mean(1)
    assert float(gap[7]) < 0.1
    assert float(gap[:7].mean()) < error(federation, state.own) / 2


def test_two_clients_who_differ_use_their_own_models_and_two_who_do_not_share():
    best = torch.tensor([[5.0, 0.0, 0.0]], dtype=REAL)
    apart = trained(linear_clients(torch.cat([best, -best])), 12, steps=4)
    assert torch.equal(in_use(apart), apart.own)
    alike = linear_clients(torch.cat([best, best]), noise=1.0, train=5)
    together = trained(alike, 12, steps=4)
    assert together.place.member.tolist() == [0, 0]
    assert error(alike, in_use(together)) < error(alike, together.own)


@pytest.mark.parametrize(("validation", "seed"), [(1, 0), (2, 1)])
def test_clients_of_one_or_two_samples_find_their_groups(validation, seed):
    """In one dimension, where one sample with little noise tells the side."""
    sizes, few = [1, 2, 2, 1] * 5, {"validation": validation, "noise": 0.1}
    federation = two_groups(20, d=1, train=sizes, seed=seed, **few)
    state = trained(federation, 20, steps=2)
    assert are_found(state.place.member, federation.clusters)
    assert error(federation, in_use(state)) < error(federation, state.own)


def test_who_has_no_validation_data_is_of_a_group_and_does_as_the_others():
    federation = two_groups(noise=0.5)
    state = trained(without_validation(federation, 0, 7), 16, steps=4)
    assert are_found(state.place.member, federation.clusters)
    own, halfway, tuned = state.ballot.everybody[0].tolist()
    usual = [own, 0.0, halfway, tuned]
    assert state.choice[[0, 7]].tolist() == [usual.index(min(usual))] * 2
    assert in_use(state).isfinite().all()


# Bad input.


def test_without_any_validation_data_it_says_so():
    with pytest.raises(InputError, match="coteries needs validation data, but no"):
        trained(without_validation(two_groups()), 1)


def test_what_cannot_be_meant_is_refused():
    sizes = torch.ones(3)
    refuses(r"`sure` must be greater than 0, got 0\.0", coteries, sizes, sure=0.0)
    refuses("`steps` must be at least 1, got 0", coteries, sizes, steps=0)
    with pytest.raises(InputError, match="`weighting` must be one of samples, uniform"):
        coteries(sizes, weighting="sample")
    refuses(r"`sizes` must have shape \(6,\)", begun, coteries(sizes), start())


# Steps.


RULES = {
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "adam": {"lr": "adam(0.05)"},
    "schedule": {"lr": 0.1, "schedule": "cosine(60)"},
    "all": STEPS,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stop", [1, 3, 7])
def test_a_run_that_was_packed_goes_on_as_if_nothing_had_happened(rule, stop):
    """Bit by bit: in a trial, in a contest, and after a division."""
    federation, options = two_groups(noise=0.5), {"steps": 4, **RULES[rule]}
    algorithm = coteries(federation.train.size, **options)
    simulation, x = measured(federation, 4), zeros(federation)
    states, _ = train(algorithm, simulation, x, 9)
    state = unpack(pack(states[stop]), begun(algorithm, x))
    agree(state, states[stop], "unpacked")
    for t in range(stop + 1, 10):
        state, _ = algorithm.step(state, simulation.at(t), seeds.generator(0, t))
    agree(state, states[-1], "resumed")


@pytest.mark.parametrize("rule", RULES)
def test_groups_are_found_with_every_rule(rule):
    federation = two_groups(noise=0.5)
    state = trained(federation, 20, **{"steps": 4, **RULES[rule]})
    assert are_found(state.place.member, federation.clusters)
    assert error(federation, in_use(state)) < error(federation, state.own)


# What clients compute.


def test_updates_are_cut_to_a_length_and_lost_ones_are_none():
    first = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=REAL)
    update = torch.nn.functional.normalize(first) * torch.tensor(
        [[1.0], [2], [4], [1], [1]]
    )
    end = first + update
    end[3], end[4] = math.inf, math.nan
    everybody = torch.ones(5, dtype=torch.bool)
    found = limit_update(end, first, torch.full((5,), 2.5, dtype=REAL), everybody)
    assert torch.equal(found[:2], end[:2])
    assert_close(found[2], first[2] + update[2] * 2.5 / 4, **EXACT)
    assert torch.equal(found[3:], first[3:])


def test_an_offset_is_a_mean_of_the_last_rounds_that_begins_with_the_first():
    active, apart = torch.tensor([True, True, False]), torch.ones(3, 2, dtype=REAL)
    offset = torch.zeros(3, 2, dtype=REAL)
    offset[1] = 1e-17  # by rounding
    none = torch.zeros_like(apart)
    once = follow(offset, apart, none, active)
    assert_close(once, torch.tensor([[1.0], [1.0], [0.0]], dtype=REAL).expand(3, 2))
    twice = follow(once, 3 * apart, none, active)
    assert_close(twice, torch.tensor([[1.5], [1.5], [0.0]], dtype=REAL).expand(3, 2))


# Newcomers.


def alone(federation, client, w, steps, lr=0.1):
    """After this number of full gradient steps of a client."""
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


@pytest.mark.parametrize(
    "used", [(GROUP, TUNED), (HALFWAY, OWN), (OWN, GROUP)], ids=str
)
def test_newcomers_get_their_groups_model_and_use_it_as_most_there_do(used):
    everybody, state = before_newcomers()
    assert are_found(state.place.member, everybody.clusters[:8])
    choice = torch.tensor(used)[torch.arange(8) % 2]
    choice[:2] = TUNED  # a minority
    state = state._replace(choice=choice)
    algorithm = coteries(everybody.train.size, steps=4)
    later = simulate(everybody.select(torch.tensor([8, 9])))
    found = algorithm.welcome(state, later.at(12, purpose="welcome"))
    for j, how in enumerate(used):
        w = group_of(state)[j]
        steps = {GROUP: 0, OWN: 12 * 4}.get(how, 4)
        expected = alone(everybody, 8 + j, w, steps)
        expected = (expected + w) / 2 if how == HALFWAY else expected
        assert_close(found[j], expected, **EXACT)


def test_a_round_tells_groups_and_who_uses_a_model_of_its_own():
    member = torch.tensor([0, 0, 2, 2, 2])
    told = sharing(member, torch.tensor([OWN, GROUP, TUNED, HALFWAY, OWN]))
    assert told["uses"].tolist() == [ALONE, 0, 2, 2, ALONE]
    assert told["alone"].tolist() == [1, 0, 0, 0, 1]
    found = weights_told(told, torch.tensor([1, 3, 2, 1, 1]))
    # All members count in a group's model, also those who use another.
    expected = [[8, 0, 0, 0, 0], [2, 6, 0, 0, 0], *[[0, 0, 4, 2, 2]] * 2]
    expected += [[0, 0, 0, 0, 8]]
    assert_close(found, torch.tensor(expected, dtype=REAL) / 8, **EXACT)


# Costs.


@pytest.mark.parametrize(
    ("steps", "batch_size", "every"),
    [(1, 0, 3), (2, 0, 2), (3, 0, 1), (1, 2, 10), (5, 2, 2), (10, 2, 1), (1, 4, 5)],
)
def test_looks_are_rarer_where_rounds_are_short(steps, batch_size, every):
    """They are passes through 8 samples, for at most 0.4 of a round's gradients."""
    federation = two_groups(noise=0.5)
    state = trained(federation, 1, steps=steps, batch_size=batch_size)
    assert state.every == every
    work = steps * (batch_size or 8)
    assert 8 / every <= 0.4 * work
    assert every == 1 or 8 / (every - 1) > 0.4 * work


def test_clients_choose_at_every_third_look():
    federation = two_groups(noise=0.5)
    algorithm = coteries(federation.train.size, steps=2)
    states = train(algorithm, simulate(federation), zeros(federation), 12)[0]
    ballots = [state.ballot for state in states]
    for number, (old, new) in enumerate(itertools.pairwise(ballots)):
        # Every other round has a look: clients choose at the third, the sixth, ...
        chooses = number % 6 == 4
        assert (old.losses != new.losses).any() == chooses
        assert (old.everybody != new.everybody).any() == chooses


@functools.cache
def costs(participation):
    """States, and gradients and values sent, round after round of three steps."""
    federation = two_groups(noise=0.5)
    algorithm = coteries(federation.train.size, steps=3)
    simulation = simulate(federation, 4)
    states, found = [begun(algorithm, zeros(federation))], []
    for t in range(1, 21):
        active = participants(len(federation), participation, 0, t)
        oracle = simulation.at(t, active)
        states.append(algorithm.step(states[-1], oracle, seeds.generator())[0])
        found.append((oracle.gradients, traffic_of(oracle.sent), active))
    return states, found


@pytest.mark.parametrize("participation", [1.0, 0.75])
def test_it_costs_two_local_trainings_and_three_in_contests(participation):
    states, found = costs(participation)
    factors = []
    for before, (gradients, _, active) in zip(states, found, strict=False):
        factors.append(3 if before.server.clock.phase == CONTEST else 2)
        assert_close(gradients, factors[-1] * 3 * 4 * active.double())
    assert 2 <= factors.count(3) < 10


@pytest.mark.parametrize("participation", [1.0, 0.75])
def test_what_a_round_sends_is_counted(participation):
    """Models, up and down, and a few numbers."""
    d = 3
    states, found = costs(participation)
    kinds, asked = set(), 0
    for number, (_, traffic, active) in enumerate(found):
        before, after = states[number], states[number + 1]
        phase = before.server.clock.phase
        whole = bool(active.all())
        every = after.every
        looks = number % every == 0
        # Means of groups and of halves; who is not all also hears if anybody was there.
        means = {REST: 1, TRIAL: 2, CONTEST: 3}[phase]
        models, numbers = 2 * means, 0 if whole else 2 * means
        if number == 0:
            numbers += 4 + 2  # a first look
        if number % (3 * every) == 2 * every:
            numbers += 3 + 3  # losses, and everybody's
        if looks and phase == REST:
            models, numbers = models + 1, numbers + 1 + 6  # a direction, its rounds
        if looks and phase != REST:
            numbers += 1 + 8  # a half; a place
        if looks and before.server.clock.asks:
            numbers += 1 + 4  # samples and evidence
            asked += 1
        if phase == REST and after.server.clock.phase == TRIAL:
            models += 2 * 2  # means of offsets
        kinds.add((phase, looks, after.server.clock.phase))
        assert traffic == (int(active.sum()) * (models * d + numbers), 0)
    assert {phase for phase, _, _ in kinds} == {REST, TRIAL, CONTEST}
    # Evidence that decides nothing is not told: fewer looks ask for it than there are.
    clocks = [state.server.clock for state in states[:-1]]
    tried = [k for k, clock in enumerate(clocks) if clock.phase != REST]
    looked = [k for k in tried if k % states[-1].every == 0]
    assert asked == sum(clocks[k].asks for k in looked)
    assert 2 <= asked < len(looked)
