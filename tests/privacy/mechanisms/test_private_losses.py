"""Losses that leave clients: bounded, noised, counted, and chosen by."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from coterie import Simulation
from coterie.checks import InputError
from coterie.collaboration.evidence import surely_above_zero
from coterie.conformance.cases import Setting, simulation_of, trace_rounds, trajectory
from coterie.conformance.divided import run_divided
from coterie.conformance.federations import CLIENTS
from coterie.conformance.federations import small_federation as small
from coterie.privacy import PrivateSimulation, sampled_epsilon, sampled_epsilons
from coterie.privacy.accounting.accounts import by_pairs, totals
from coterie.privacy.accounting.calibration import (
    Limits,
    Noises,
    noise_for_samples,
    with_noise,
)
from coterie.privacy.accounting.ledger import LOSSES, Ledger
from coterie.privacy.accounting.subsampled import epsilons_of_steps, quick_epsilons
from coterie.privacy.mechanisms import (
    CallPlan,
    Mechanism,
    StepPlan,
    costs_of,
    count_releases,
    events_of,
    make_private,
    plan_calls,
    plan_steps,
)
from coterie.privacy.mechanisms.dry_run.scenarios import largest_costs, scenario_rounds
from coterie.privacy.mechanisms.per_sample.losses import (
    as_samples,
    bounded_mean,
    usual_loss_clip,
)
from coterie.privacy.mechanisms.receivers import as_steps
from coterie.privacy.mechanisms.telling import Questions
from coterie.types import SERVER, Algorithm
from support.plain_clients import EXACT, losses_told
from support.private_runs import EVERYBODY, method, one_start, private_run
from support.simulated import CLIP, NOISE, private, rows, share_of

CHOOSING = ["coteries", "ifca", "neighbours"]
ROUNDS = 6
MOST = 2.0
NAN = math.nan


# What is released.


def test_a_mean_loss_counts_every_sample_between_0_and_its_bound():
    losses = torch.tensor([[0.5, 9.0, NAN], [-1.0, math.inf, 1.0], [NAN, NAN, NAN]])
    found = bounded_mean(losses.double(), 2.0)
    assert_close(found[:2], torch.tensor([1.25, 1.0]).double())
    assert found[2].isnan()


def test_a_sample_moves_a_mean_by_its_bound_over_their_number_and_a_client_by_it():
    rng = torch.Generator().manual_seed(0)
    losses = 3 * torch.randn(200, 5, generator=rng, dtype=torch.float64)
    other = losses.clone()
    other[:, 2] = 50 * torch.randn(200, generator=rng, dtype=torch.float64)
    moved = (bounded_mean(losses, MOST) - bounded_mean(other, MOST)).abs()
    assert 0.9 * MOST / 5 < float(moved.max()) <= MOST / 5 + 1e-12
    # A sample that counts as nothing stays in the number.
    without = losses.clone()
    without[:, 2] = 0
    moved = (bounded_mean(losses, MOST) - bounded_mean(without, MOST)).abs()
    assert float(moved.max()) <= MOST / 5 + 1e-12
    all_new = 50 * torch.randn(200, 5, generator=rng, dtype=torch.float64)
    moved = (bounded_mean(losses, MOST) - bounded_mean(all_new, MOST)).abs()
    assert float(moved.max()) <= MOST


def test_numbers_in_place_of_samples_have_the_released_mean_and_nothing_else():
    clients, known = torch.arange(4), torch.ones(4, 6, dtype=torch.float64)
    known[2, 3:], known[3] = NAN, NAN
    mean = torch.tensor([-0.3, 1.0, 2.5, NAN], dtype=torch.float64)
    spread = 0.5 * torch.ones(4, dtype=torch.float64)
    found = as_samples(mean, known, spread, MOST, 7, clients)
    assert_close(found.nanmean(1)[:3], mean[:3])
    assert torch.equal(found.isnan(), known.isnan())
    # Whatever the losses are.
    assert torch.equal(
        found.nan_to_num(),
        as_samples(mean, 9 * known, spread, MOST, 7, clients).nan_to_num(),
    )
    no_samples = known[:, :0]
    assert as_samples(mean, no_samples, spread, MOST, 7, clients).shape == (4, 0)


def test_their_spread_is_that_of_noise_and_of_samples_between_the_bounds():
    """m deviation^2 + f (C - f), as the variance of single numbers."""
    n, m = 400, 25
    known = torch.zeros(n, m, dtype=torch.float64)
    mean = torch.full((n,), 0.5, dtype=torch.float64)
    found = as_samples(mean, known, 0.2 + 0 * mean, MOST, 3, torch.arange(n))
    expected = m * 0.2**2 + 0.5 * (MOST - 0.5)
    # n (m - 1) squares, whose relative standard error is sqrt(2 / count).
    assert_close(
        found.var(1).mean(), torch.tensor(expected).double(), rtol=0.06, atol=0
    )


def test_noise_alone_is_rarely_sure_of_anything():
    """Two equal models, asked of one client: differences beyond 2 errors, in 5 %."""
    n, m, deviation = 2000, 20, 0.4
    known = torch.zeros(n, m, dtype=torch.float64)
    rng = torch.Generator().manual_seed(1)
    answers = []
    for stream in (1, 2):
        noise = deviation * torch.randn(n, generator=rng, dtype=torch.float64)
        scale = torch.full((n,), deviation, dtype=torch.float64)
        names = torch.arange(n)
        answers.append(as_samples(1.0 + noise, known, scale, 2.0, stream, names))
    apart = answers[1] - answers[0]
    samples = torch.full((n,), float(m), dtype=torch.float64)
    z = surely_above_zero(samples, apart.sum(1), apart.square().sum(1))
    # The spread of samples, which is also in the error, has no part in these means.
    assert 0.005 < float((z.abs() > 2).double().mean()) < 0.06


# The unit sample.


def asked(clients, x, t: int = 1):
    return losses_told(clients.at(t), x)


def test_losses_of_single_samples_have_noise_of_the_promised_size(classification):
    """s C / (q m) on a mean over m samples, where q is the rate of minibatches."""
    own = {"batch_size": 3, "loss_clip": 0.8, "held_out_noise": 0.7}
    clients = private(classification, **own)
    quiet = private(classification, **{**own, "held_out_noise": 0.0}, noise=0.0)
    x = rows(clients._simulation)
    drawn = [
        [a - b for a, b in zip(asked(clients, x, t), asked(quiet, x, t), strict=True)]
        for t in range(1, 31)
    ]
    for part, noise, place in (("train", 1.5, 0), ("validation", 0.7, 1)):
        numbers = torch.stack([both[place] for both in drawn]).movedim(1, 0).flatten(1)
        m = getattr(classification, part).size.double()
        q = 3 / classification.train.size.double()
        tolerance = 4 / math.sqrt(2 * numbers.shape[1])
        expected = noise * 0.8 / (q * m)
        assert_close(numbers.std(1), expected, rtol=tolerance, atol=0)


def test_a_sample_moves_a_released_mean_by_what_the_ledger_says_at_most(classification):
    """The ledger has q times the sum of losses, which is q m times their mean."""
    federation, rng = classification, torch.Generator().manual_seed(3)
    whole = private(federation, batch_size=3, noise=0.0, loss_clip=0.05)
    x = 3 * rows(whole._simulation)
    before = asked(whole, x)
    events = [event for event in whole.ledger if event.verb == LOSSES]
    assert {event.held_out for event in events} == {False, True}
    for place, part in ((0, federation.train), (1, federation.validation)):
        features = federation.features.clone()
        first = part.index[part.start]  # the first sample of every client
        features[first] = 20 * torch.randn(
            features[first].shape, generator=rng, dtype=features.dtype
        )
        changed = replace(federation, features=features)
        other = private(changed, batch_size=3, noise=0.0, loss_clip=0.05)
        moved = (asked(other, x)[place] - before[place]).abs().amax(1)
        said = torch.zeros(len(x), dtype=torch.float64)
        for event in (e for e in events if e.held_out == bool(place)):
            said[event.links[:, 0]] = event.sensitivity
        q = 3 / federation.train.size.double()
        assert (moved <= said / (q * part.size) + 1e-12).all()
        assert float(moved.max()) > 0


def test_a_sample_is_held_out_or_not_and_pays_for_its_part_alone(classification):
    clients = private(classification, batch_size=3, loss_clip=0.8)
    x = rows(clients._simulation)
    asked(clients, x)
    clients.at(2).grads(x)
    rates = (3 / classification.train.size.double()).tolist()
    spent = sampled_epsilons(clients.ledger, delta=1e-5)
    alone = []
    for held_out in (False, True):
        some = tuple(e for e in clients.ledger if e.held_out == held_out)
        alone.append(sampled_epsilons(Ledger(6, some), delta=1e-5))
    assert_close(spent, torch.maximum(*alone))
    # Two losses of validation samples, as two Gaussian releases with mu = q / s.
    for found, q in zip(alone[1].tolist(), rates, strict=True):
        expected = sampled_epsilon(NOISE / q, delta=1e-5, rate=1.0, steps=2)
        assert found == pytest.approx(expected, rel=1e-6)
    assert (alone[0] > 0).all()


def test_debugging_client_by_client_releases_the_same_losses(classification):
    clients, looped = private(classification), private(classification, loop=True)
    x = rows(clients._simulation)
    for a, b in zip(asked(clients, x), asked(looped, x), strict=True):
        assert_close(a, b, **EXACT)
    assert len(clients.ledger) == len(looped.ledger) > 0


class Steps(NamedTuple):
    """A method of clients who hide single samples, and what these release."""

    plain: Simulation
    algorithm: Algorithm
    planned: list  # of the beginning and six rounds, with a noise of 1


@functools.cache
def six_rounds(name: str) -> Steps:
    plain = simulation_of(small(), Setting(batch_size=4))
    algorithm, tried = method(name), PrivateSimulation(plain, clip=CLIP, noise=1.0)
    planned = plan_steps(algorithm, tried, [EVERYBODY] * 6, seed=0)
    return Steps(plain, algorithm, planned.rounds)


@pytest.mark.parametrize("name", ["coteries", "ifca"])
def test_a_plan_for_an_epsilon_is_kept_by_methods_that_choose(name):
    (plain, algorithm, steps), epsilon = six_rounds(name), 3.0
    noises = noise_for_samples(steps, epsilon, 1e-5)
    clients = PrivateSimulation(
        plain, clip=CLIP, noise=noises.training, held_out_noise=noises.held_out
    )
    planned = StepPlan(with_noise(steps, noises), 1e-5)
    guarded = count_releases(algorithm, clients, planned)
    state = trace_rounds(guarded, clients, one_start(), 6).states[-1]
    assert state.t == 6 and not state.stopped
    spent = [dict(((*s,), k) for *s, k in kinds) for kinds in state.releases]
    found = epsilons_of_steps(spent, delta=1e-5)
    assert 0.3 * epsilon < float(found.max()) <= epsilon


def test_training_ends_at_its_budget():
    plain, algorithm, steps = six_rounds("coteries")
    clients = PrivateSimulation(plain, clip=CLIP, noise=NOISE)
    rounds = with_noise(steps, Noises(NOISE, NOISE))
    planned = StepPlan(rounds, 1e-5, chooses=True)  # by losses that were told
    guarded = count_releases(algorithm, clients, planned)
    states = trace_rounds(guarded, clients, one_start(), 5).states
    before = [as_steps(kinds) for kinds in states[1].releases]
    second = [a + b for a, b in zip(before, planned.rounds[2], strict=True)]
    budget = 0.999 * float(quick_epsilons(second, 1e-5).max())
    clients = PrivateSimulation(plain, clip=CLIP, noise=NOISE)
    limited = count_releases(
        algorithm, clients, planned._replace(limits=Limits(budget))
    )
    ended = trace_rounds(limited, clients, one_start(), 5).states
    assert ended[-1].stopped == 2
    assert_close(ended[-1].state.own, ended[ended[-1].stopped - 1].state.own)
    assert not states[-1].stopped


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss_clip": 0.0}, "`loss_clip` must be greater than 0, got 0"),
        ({"loss_clip": -1.0}, "`loss_clip` must be greater than 0, got -1"),
        ({"loss_clip": NAN}, "`loss_clip` must be a finite number, got nan"),
        ({"loss_clip": math.inf}, "`loss_clip` must be finite if there is noise"),
        ({"held_out_noise": -1.0}, "`held_out_noise` must be at least 0, got -1"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(classification, given, message):
    with pytest.raises(InputError, match=message):
        private(classification, **given)


def test_the_usual_bound_is_the_loss_of_who_knows_nothing(classification, regression):
    assert usual_loss_clip(classification) == math.log(classification.outputs)
    assert usual_loss_clip(regression) == 1.0
    assert usual_loss_clip(replace(classification, task="binary", outputs=1)) == (
        math.log(2)
    )


# The unit client.


class Plan(NamedTuple):
    """A method of the small federation, what it will send, and what that costs."""

    algorithm: Algorithm
    foreseen: CallPlan
    costs: list[Tensor]  # of 25 for each release


@functools.cache  # what methods that choose may send takes seconds to see
def plan(name: str) -> Plan:
    algorithm, actives = method(name), [EVERYBODY] * ROUNDS
    foreseen = plan_calls(algorithm, actives, seed=0, label=name)
    costs = costs_of(algorithm, foreseen, actives, seed=0)
    return Plan(algorithm, foreseen, [25.0 * each for each in costs])


TELLING = Mechanism(clip=0.5, noise=0.2, loss_clip=MOST)


def test_losses_of_clients_have_as_much_noise_in_clips_as_rows():
    of_losses = TELLING.for_losses
    assert of_losses.sensitivity == MOST  # from 0 to C
    assert of_losses.noise / of_losses.sensitivity == 0.2 / TELLING.sensitivity
    n = 4000
    losses = torch.full((n, 3), 5.0, dtype=torch.float64)  # above the bound
    questions = Questions(of_losses, torch.arange(n), (1, 0))
    mean, numbers = questions.release(losses, torch.arange(n))
    noise = mean - MOST
    assert abs(float(noise.mean())) < 4 * of_losses.noise / math.sqrt(n)
    assert float(noise.std()) == pytest.approx(
        of_losses.noise, rel=4 / math.sqrt(2 * n)
    )
    assert_close(numbers.mean(1), mean)
    again, _ = Questions(of_losses, torch.arange(n), (1, 0)).release(
        losses, torch.arange(n)
    )
    assert torch.equal(again, mean)
    assert questions.asked == 1


def test_noise_of_losses_needs_a_bound():
    with pytest.raises(InputError, match="`loss_clip` must be finite if there is"):
        private_run(method("ifca"), Mechanism(0.5, 0.2), rounds=1)


def test_in_ifca_a_client_pays_for_every_loss_and_for_its_model():
    algorithm = method("ifca", clusters=2, starts=3)
    _, events = private_run(algorithm, TELLING, rounds=2)
    # Two losses for each of three starts and for the choice, then a model.
    said = [(e.round, e.verb, e.sensitivity) for e in events]
    two = math.sqrt(2) * MOST
    losses = [(1, LOSSES, two)] * 4, [(2, LOSSES, two)]
    expected = [*losses[0], (1, "average", 1.0), *losses[1], (2, "average", 1.0)]
    assert [(t, v) for t, v, _ in said] == [(t, v) for t, v, _ in expected]
    assert [s for _, _, s in said] == pytest.approx([s for _, _, s in expected])
    assert {int(to) for e in events for to in e.links[:, 1]} == {SERVER}
    # Every loss and every row costs (2 C / s)^2 = 25.
    everybody = torch.full((CLIENTS,), 25.0 * (8 + 1 + 2 + 1), dtype=torch.float64)
    assert_close(totals(events, CLIENTS), everybody)
    assert_close(by_pairs(events, CLIENTS)[:, -1], everybody)


def test_epsilon_rises_by_what_losses_cost():
    one = private_run(method("ifca", clusters=1), TELLING, rounds=2)[1]
    two = private_run(method("ifca", clusters=2, starts=1), TELLING, rounds=2)[1]
    # Two losses for the only start and two for the choice; then two for the choice.
    more = totals(two, CLIENTS) - totals(one, CLIENTS)
    assert_close(more, torch.full_like(more, 25.0 * 6))


@pytest.mark.parametrize("name", CHOOSING)
def test_zero_noise_and_no_bound_is_training_without_privacy(name):
    algorithm, foreseen, _ = plan(name)
    found, events = private_run(
        algorithm, Mechanism(math.inf, 0.0), rounds=ROUNDS, foreseen=foreseen
    )
    expected = trajectory(algorithm, small(), Setting(), x=one_start(), rounds=ROUNDS)
    assert_close(found.personal, expected.personal, rtol=0, atol=1e-9)
    assert any(event.verb == LOSSES for event in events)


@pytest.mark.parametrize("name", CHOOSING)
def test_what_methods_choose_by_depends_on_released_losses_alone(name):
    """Other data of a client, and the same releases: the same choices of all."""
    foreseen = plan(name).foreseen
    assert foreseen.by_key is not None
    # Rows that are no models are the same in two worlds that differ in all data.
    for (sort, _), call in foreseen.by_key.items():
        models = sort[sort.index("(") + 1 : sort.index(")")]
        for is_model, fresh in zip(models, call.fresh, strict=True):
            assert is_model == "x" or not fresh, sort


@pytest.mark.parametrize("name", CHOOSING)
def test_no_round_costs_more_than_was_planned(name):
    algorithm, foreseen, costs = plan(name)
    planned = torch.stack(costs).cumsum(0)
    given = {"rounds": ROUNDS, "foreseen": foreseen, "costs": costs}
    found, _ = private_run(algorithm, TELLING, **given)
    for t, state in enumerate(found.states):
        assert (state.spent <= planned[t] * (1 + 1e-9)).all()


def test_nobody_goes_on_beyond_a_budget():
    algorithm, foreseen, costs = plan("coteries")
    enough = float(sum(costs[:3]).max())
    given = {"rounds": 4, "foreseen": foreseen, "costs": costs}
    found, _ = private_run(algorithm, TELLING, **given, limits=Limits(enough))
    last = found.states[-1]
    assert last.stopped in (3, 4)
    assert float(last.spent.max()) <= enough * (1 + 1e-9)


@pytest.mark.parametrize(
    "name", [*CHOOSING, "fedavg", "decentralised_sgd", "adaptive_all_for_one"]
)
def test_divided_private_runs_are_the_same(name):
    federation, x = small(), one_start()
    algorithm, foreseen, _ = plan(name)

    def work(group):
        some, here = share_of(federation, group)
        clients = simulation_of(some, Setting(), group)
        made = make_private(algorithm, foreseen, TELLING, federation.clients)
        found = trace_rounds(made, clients, x[here], 4)
        return found.personal, found.states[-1]

    whole, events = private_run(algorithm, TELLING, rounds=4, foreseen=foreseen)
    parts = run_divided(work, 2)
    found = torch.cat([personal for personal, _ in parts])
    assert_close(found, whole.personal, rtol=0, atol=1e-9)
    for _, state in parts:
        assert_close(state.spent, totals(events, CLIENTS))
        assert len(state.ledger) == len(events)


def test_the_dearest_of_scenarios_is_planned_for_every_round():
    present, absent = torch.tensor([True, True]), torch.tensor([True, False])
    actives = [present, absent, present, present]
    tried = scenario_rounds(actives)
    assert len(tried) > 4
    assert all(a is b for a, b in zip(tried[4:], tried[:-4], strict=True))
    usual = [[2, 1] if bool(active[1]) else [2, 0] for active in tried]
    one, two = ([[0, 0], [1, 1], *usual[1:]] for _ in range(2))
    two[0], one[1], two[7], one[10] = [0, 1], [9, 1], [3, 4], [5, 0.5]
    assert bool(tried[6][1]) and not bool(tried[9][1])
    found = largest_costs([one, two], actives, max, 0)
    assert found == [[0, 1], [9, 1], [5, 0.5], [5, 4], [5, 4]]


def test_whoever_takes_no_part_tells_no_losses():
    algorithm = method("ifca")
    away = torch.arange(CLIENTS) == 2
    simulation = simulation_of(small(), Setting())
    foreseen = plan_calls(algorithm, [~away] * 3, seed=0, label="it")
    made = make_private(algorithm, foreseen, TELLING, simulation.names)
    state = trace_rounds(made, simulation, one_start(), 3, active=~away).states[-1]
    told = [e for e in events_of(state.ledger) if e.verb == LOSSES]
    assert told and all(2 not in event.links[:, 0] for event in told)
    planned = costs_of(algorithm, foreseen, [~away] * 3, seed=0)
    assert (state.spent <= 25.0 * sum(planned) * (1 + 1e-9)).all()
