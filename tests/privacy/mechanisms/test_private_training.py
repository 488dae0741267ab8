"""Claims about methods whose clients release clipped rows with noise."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.all_for_one import all_for_one
from coterie.algorithms.decentralised_sgd import decentralised_sgd
from coterie.checks import InputError
from coterie.conformance.cases import Setting, simulation_of, trace_rounds, trajectory
from coterie.conformance.federations import CLIENTS
from coterie.conformance.federations import small_federation as small
from coterie.privacy import Exchange, Input, Release
from coterie.privacy.accounting.accounts import by_pairs, totals
from coterie.privacy.accounting.calibration import Limits, noise_for_clients
from coterie.privacy.mechanisms import (
    Mechanism,
    costs_of,
    events_of,
    make_private,
    plan_calls,
)
from coterie.privacy.mechanisms.dry_run.nearest import OWN, RESULT
from coterie.privacy.mechanisms.noise import SEEDED, normals, source_of
from coterie.privacy.mechanisms.oracle import PrivateOracle
from coterie.privacy.mechanisms.watching import WatchedOracle
from coterie.records import pack, unpack
from coterie.types import SERVER, Algorithm, Rows
from support.private_runs import (
    EVERYBODY,
    cost,
    method,
    one_start,
    own_budgets,
    private_oracle,
    private_run,
    seen,
)
from support.refusals import refuses

NOISY = Mechanism(clip=0.5, noise=0.2)
SEATS = torch.arange(CLIENTS)


class Plain(NamedTuple):
    x: Rows


# The mechanism.


def test_noise_has_the_promised_scale_and_rows_are_clipped_around_what_is_known():
    mechanism = Mechanism(clip=2.0, noise=0.7, seed=3)
    names, size = torch.arange(40), 500
    x = torch.randn(40, size, dtype=torch.float64)  # norms near 22
    ref = torch.ones(40, size, dtype=torch.float64)
    z = mechanism.release(x, ref, seeds.key("test"), names)
    away = x - ref
    shorter = ref + 2.0 * away / away.norm(dim=1, keepdim=True)
    noise = z - shorter
    count = noise.numel()
    assert abs(float(noise.mean())) < 4 * 0.7 / math.sqrt(count)
    assert abs(float(noise.square().mean()) / 0.49 - 1) < 4 * math.sqrt(2 / count)
    assert_close(
        Mechanism(2.0, 0.0).release(x, ref, 0, names), shorter, rtol=1e-12, atol=0
    )


def test_named_noise_repeats_and_that_of_the_system_does_not():
    names, x = torch.arange(3), torch.zeros(3, 5, dtype=torch.float64)
    named, other = Mechanism(1.0, 1.0), Mechanism(1.0, 1.0, source=source_of("system"))
    first, again = (named.release(x, 0.0, 7, names) for _ in range(2))
    assert torch.equal(first, again)
    one, two = (other.release(x, 0.0, 7, names) for _ in range(2))
    assert not bool((one == two).all(1).any())


def test_secret_noise_is_as_large_as_it_is_charged():
    # Half of it, or twice, would be a hundred standard errors away.
    mechanism = Mechanism(2.0, 0.7, source=source_of("system"))
    x = torch.randn(4, 60_000, generator=torch.Generator().manual_seed(1)).double()
    ref = x + torch.ones(4, 1)
    z = mechanism.release(x, ref, 0, torch.arange(4))
    away = x - ref
    shorter = ref + 2.0 * away / away.norm(dim=1, keepdim=True)
    found = float((z - shorter).square().mean().sqrt()) / 0.7
    assert abs(found - (1 + 2.0**-10)) < 5.5 / math.sqrt(2 * x.numel())
    assert mechanism.drawn_noise == 0.7 * (1 + 2.0**-10)


@pytest.mark.parametrize("source", [SEEDED, source_of("system")])
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_that_overflows_leaves_as_what_is_known_of_it(source, odd, dtype):
    mechanism = Mechanism(2.0, 0.01, source=source)
    ref = torch.arange(12.0).view(3, 4).to(dtype)
    x = ref + 0.1
    x[1, 2] = odd
    z = mechanism.release(x, ref, 0, torch.arange(3))
    sent = torch.tensor([0.1, 0.0, 0.1], dtype=dtype)[:, None]
    assert bool((z != ref + sent).any(1).all())  # each has noise
    assert bool((z - ref - sent).abs().max() < 0.08)


def test_rows_with_secret_noise_are_known_rows_and_steps_of_a_grid():
    mechanism = Mechanism(2.0, 0.7, source=source_of("system"))
    rng = torch.Generator().manual_seed(1)
    x, ref = torch.randn(2, 3, 50, generator=rng, dtype=torch.float64)
    z = mechanism.release(x, ref, 0, torch.arange(3))
    steps = (z - ref) * 2.0**9  # 0.7 (1 + 2^-10) is between 2^-1 and 1
    assert_close(steps, steps.round(), rtol=0, atol=1e-6)
    z = mechanism.release(x, ref, 0, torch.arange(3), summed=True)
    assert bool((((z - ref) * 2.0**9) % 1 > 1e-6).any())


@pytest.mark.parametrize(
    "name", ["fedavg", "fedrep", "decentralised_sgd", "all_for_one", "cobo"]
)
def test_new_data_of_a_client_move_its_first_release_by_its_sensitivity_at_most(name):
    federation = small()
    who = federation.train.index[
        federation.train.start[1] : federation.train.start[1] + federation.train.size[1]
    ]
    features = federation.features.clone()
    features[who] = 30 * features[who].flip(0) + 5
    changed = replace(federation, features=features)
    mechanism = Mechanism(clip=0.01, noise=1e-12)
    kept = []
    for data in (federation, changed):
        sent: list[torch.Tensor] = []
        run_watched(method(name, federation), mechanism, data, sent)
        kept.append(sent)
    moved = [float((a - b).norm()) for a, b in zip(*kept, strict=True)]
    assert moved and max(moved) <= mechanism.sensitivity + 1e-9
    assert max(moved) > 0.001


@pytest.mark.parametrize("oracle", [PrivateOracle, WatchedOracle])
def test_no_verb_between_clients_is_passed_on_as_it_is(oracle):
    assert {"average", "mix", "central", "blended", "compare"} <= vars(oracle).keys()


def run_watched(algorithm, mechanism, federation, sent) -> None:
    """Runs one round; `sent` gets the released rows of client 1."""
    simulation = simulation_of(federation, Setting(batch_size=0))
    original = Mechanism.release

    def release(self, x, ref, stream, clients, share=1.0, **options):
        z = original(self, x, ref, stream, clients, share, **options)
        sent.extend(z[clients == 1])
        return z

    Mechanism.release = release
    try:
        foreseen = seen(algorithm, rounds=1)
        made = make_private(algorithm, foreseen, mechanism, simulation.names)
        trace_rounds(made, simulation, one_start(), 1)
    finally:
        Mechanism.release = original


# What is sent, and what it costs.


def test_local_training_releases_nothing():
    _, events = private_run(method("local"), NOISY)
    assert events == ()


def test_fedavg_releases_one_row_of_each_client_to_the_server_in_a_round():
    _, events = private_run(method("fedavg"), NOISY)
    assert [(e.round, e.verb, len(e.links)) for e in events] == [
        (t, "average", CLIENTS) for t in range(1, 5)
    ]
    for event in events:
        assert (event.sensitivity, event.noise) == (1.0, 0.2)
        assert (event.links[:, 1] == SERVER).all()
    assert_close(totals(events, CLIENTS), torch.full((CLIENTS,), 4 * 25.0).double())


def test_a_body_is_clipped_and_noised_alone_and_heads_stay_as_they_are():
    algorithm, clip, sigma = method("fedrep", weighting="uniform"), 0.01, 0.02
    head, x = algorithm.home, one_start()
    mechanism = Mechanism(clip, sigma, seed=4)
    run, events = private_run(algorithm, mechanism, rounds=1)
    assert [(e.verb, len(e.links), e.sensitivity) for e in events] == [
        ("average", CLIENTS, 2 * clip)
    ]
    plain = trajectory(algorithm, small(), Setting(), x=x, rounds=1)
    assert torch.equal(run.personal[:, head], plain.personal[:, head])
    # Bodies as every client has trained them, before they are averaged.
    away = (plain.states[-1].x - x)[:, ~head]
    away *= (clip / away.norm(dim=1, keepdim=True)).clamp(max=1)
    names, size = small().clients, int((~head).sum())
    drawn = normals(seeds.key(4, "privacy", 1, "average", 0, 0), names, size, x.dtype)
    body = (x[:, ~head] + away + sigma * drawn).mean(0)
    assert_close(run.personal[:, ~head], body.expand(CLIENTS, -1), rtol=0, atol=1e-12)


def test_in_all_for_one_a_client_pays_for_every_reader():
    weights = torch.zeros(CLIENTS, CLIENTS)
    weights[:, 0] = 0.5  # all read client 0
    weights += torch.eye(CLIENTS) * 0.5
    weights[0] = torch.eye(CLIENTS)[0]
    _, events = private_run(all_for_one(weights), NOISY, rounds=2)
    apart = [e for e in events if e.apart]
    sent = Counter(int(k) for e in apart for k in e.links[:, 0])
    assert sent == {0: 2 * (CLIENTS - 1)}
    once = 25.0  # (2 C / s)^2
    spent = totals(events, CLIENTS)
    # Client 0 is read by five, and its own model goes to nobody; the others' goes to 0.
    assert_close(spent[0], torch.tensor(2 * 5 * once).double())
    assert_close(spent[1:], torch.full((CLIENTS - 1,), 2 * once).double())
    # What one reader is told comes back in its model, and goes on from client 0.
    found = by_pairs(events, CLIENTS)[0, 1:CLIENTS]
    assert_close(found, spent[0].expand(5))


def test_what_is_made_of_releases_alone_costs_nothing():
    # The models of All-for-all move by mixed gradients, and are known; gradients cost.
    costs = cost(method("all_for_all", form="factored"))
    assert [float(c.max()) for c in costs] == [0, 1, 1, 1, 1]
    # Karula's multipliers come from the coordinator.
    costs = cost(method("karula"))
    assert [float(c.max()) for c in costs] == [0, 1, 1, 1, 1]


def test_the_same_row_sent_twice_in_a_round_is_released_once():
    # A model to two partners and to all, and a gradient to each of two partners.
    costs = cost(method("cobo", meetings=2))
    assert float(costs[-1].max()) == 3


@pytest.mark.parametrize("active", [EVERYBODY, EVERYBODY.index_fill(0, SEATS[:1], 0)])
@pytest.mark.parametrize("models", [2, 9])
def test_a_client_that_rests_at_first_pays_when_it_sends_later(active, models):
    """Each of an odd number of clients may rest while the first pairs are formed."""
    algorithm = method("fedfomo", models=models)
    start, *rounds = cost(algorithm, rounds=6, active=active)
    assert not start.any()
    assert all(torch.equal(each, active.double()) for each in rounds)


def test_every_receiver_of_a_row_has_an_entry():
    """All pairs meet in one round, and nothing is sent on before the next one."""
    _, events = private_run(method("fedfomo", models=9), NOISY, rounds=1)
    one = torch.full((CLIENTS, CLIENTS), 25.0).double()  # (2 C / s)^2
    assert_close(by_pairs(events, CLIENTS)[:, :-1], one.fill_diagonal_(0))
    assert_close(totals(events, CLIENTS), one[0, 1].expand(CLIENTS))


def test_a_row_to_a_server_and_to_neighbours_is_one_release_with_all_receivers():
    weights = torch.eye(CLIENTS).roll(1, 0)

    def step(state, oracle, rng):
        (x,) = oracle.each(one_step, state.x, lr=0.1)
        mean = oracle.average(x.new_ones(len(x)), x)
        return Plain((mean + oracle.mix(weights, x)) / 2), {}

    _, events = private_run(Algorithm(lambda x, _: Plain(x), step), NOISY, rounds=1)
    once = torch.full((CLIENTS,), 25.0).double()
    assert_close(totals(events, CLIENTS), once)
    found = by_pairs(events, CLIENTS)
    assert_close(found[:, SERVER], once)
    # Round the circle, every client may hear of every other.
    assert (found[:, :CLIENTS].fill_diagonal_(25) == 25).all()


def test_comparing_releases_two_halves_to_everybody_who_asks_and_at_ones_own_model():
    _, events = private_run(method("adaptive_all_for_one"), NOISY, rounds=1)
    compared = [e for e in events if e.verb == "compare"]
    assert_close(totals(compared, CLIENTS), torch.full((CLIENTS,), 12 * 25.0).double())


def test_planned_costs_are_those_of_the_run():
    names = "fedavg fedrep all_for_one gradient_tracking karula wga_bc"
    for name in names.split():
        _, events = private_run(method(name), NOISY)
        planned = torch.stack(cost(method(name))).sum(0) * 25.0
        assert_close(totals(events, CLIENTS), planned, msg=name)


@pytest.mark.parametrize("name", ["nuclear_norm", "shared_subspace"])
def test_methods_that_send_other_numbers_are_refused_by_name(name):
    refuses(f"{name} cannot be trained privately", seen, method(name), label=name)


def test_secure_aggregation_has_the_same_noise_in_the_sum_by_smaller_noise_of_each():
    algorithm = method("fedavg", weighting="uniform")
    secure = Mechanism(0.5, 0.2, secure=True)
    _, events = private_run(algorithm, secure, rounds=1)
    (event,) = events
    assert event.summed
    assert_close(event.sensitivity / event.noise, 5.0 * math.sqrt(CLIENTS))
    spent = totals(events, CLIENTS, colluders=0)
    assert_close(spent, torch.full((CLIENTS,), 25.0).double())
    # Of the same sums with noise s on every row, as without secure aggregation.
    quiet, _ = private_run(algorithm, Mechanism(0.5, 0.0), rounds=1)
    shared, _ = private_run(algorithm, secure, rounds=1)
    local, _ = private_run(algorithm, Mechanism(0.5, 0.2), rounds=1)
    ours = shared.personal[0] - quiet.personal[0]
    theirs = local.personal[0] - quiet.personal[0]
    assert_close(ours * math.sqrt(CLIENTS), theirs, rtol=1e-9, atol=1e-12)


def test_with_unequal_shares_a_client_pays_for_its_own_share_of_a_secure_sum():
    _, events = private_run(
        method("fedavg"), Mechanism(0.5, 0.2, secure=True), rounds=1
    )
    sizes = small().train.size.double()
    share = sizes / sizes.sum()
    # The sum of rows times shares moves by 2 C p; its noise is s |p| / sqrt(m).
    expected = 1.0 * share / (0.2 * share.norm() / math.sqrt(CLIENTS))
    assert_close(totals(events, CLIENTS, colluders=0).sqrt(), expected)


# The same run, however it is made.


def test_a_run_that_is_saved_and_loaded_goes_on_with_its_ledger():
    algorithm = method("gradient_tracking")
    simulation = simulation_of(small(), Setting())
    made = make_private(algorithm, seen(algorithm), NOISY, simulation.names)
    whole = trace_rounds(made, simulation, one_start())
    half = trace_rounds(made, simulation, one_start(), 2).states[-1]
    kept = unpack(pack(half), half)
    rest = trace_rounds(made, simulation, one_start(), 4, (2, kept))
    assert torch.equal(rest.personal, whole.personal)
    assert torch.equal(rest.states[-1].spent, whole.states[-1].spent)
    assert len(rest.states[-1].ledger) == len(whole.states[-1].ledger) == 8


def test_models_are_those_of_the_released_rows_and_differ_from_the_private_ones():
    loud, _ = private_run(method("fedavg"), NOISY)
    plain = trajectory(method("fedavg"), small(), Setting(), x=one_start())
    assert float((loud.personal - plain.personal).abs().max()) > 0.01
    assert torch.equal(loud.personal[0], loud.personal[1])


def test_a_call_that_was_not_foreseen_is_refused():
    algorithm = method("fedavg")
    foreseen = seen(algorithm)
    oracle = simulation_of(small(), Setting()).at(1)
    private = private_oracle(oracle, NOISY, foreseen, one_start())
    with pytest.raises(InputError, match="`mix` in round 1 was not planned"):
        private.mix(torch.eye(CLIENTS), one_start())


def choosing(*, lr=0.1):
    """A method that sends one of two known rows, as data choose."""

    def step(state, oracle, rng):
        g = oracle.grads(state.x)
        row = torch.where(g[:, :1] > 0, state.x, -state.x)
        return state._replace(x=oracle.average(row.new_ones(len(row)), row)), {}

    return Algorithm(lambda x, oracle: State(x), step)


class State(NamedTuple):
    x: Rows


def test_what_two_worlds_agree_in_by_chance_counts_where_they_ever_differ():
    # With one client, a round in two sends the same in both worlds.
    alone = torch.ones(1, dtype=torch.bool)
    foreseen = plan_calls(choosing(), [alone] * 12, seed=0, label="it")
    assert all(call.fresh == (True,) for calls in foreseen.rounds[1:] for call in calls)


def drifting(*, lr=0.1):
    """A method whose rows are far from their mean, and near to what they were."""

    def init(x, oracle):
        away = torch.arange(len(x), dtype=x.dtype)[:, None] * 1e4
        return State(x + away)

    def step(state, oracle, rng):
        x = state.x - lr * oracle.grads(state.x)
        oracle.average(x.new_ones(len(x)), x)
        return State(x), {}

    return Algorithm(init, step)


def test_rows_of_an_average_are_never_clipped_around_a_clients_own():
    # Who sees sums alone does not know it: it would be no release.
    foreseen = seen(drifting())
    assert RESULT in foreseen.slots or not foreseen.slots
    assert OWN not in foreseen.slots


def test_a_method_that_knows_its_columns_is_seen_with_as_many():
    inner = method("fedavg")

    def init(x, oracle):
        if x.shape[1] != 19:
            raise InputError("this method is for 19 columns.")
        return inner.init(x, oracle)

    known = inner._replace(init=init)
    found = plan_calls(known, [EVERYBODY] * 2, seed=0, label="it", columns=19)
    assert [call[:4] for call in found.rounds[1]] == [("average", (True,), (0,), False)]
    refuses("19 columns", seen, known)


def test_a_pair_that_was_not_foreseen_is_refused():
    half = torch.eye(CLIENTS) * 0.5 + torch.eye(CLIENTS).roll(1, 1) * 0.5
    foreseen = seen(all_for_one(half))
    oracle = simulation_of(small(), Setting()).at(1)
    private = private_oracle(oracle, NOISY, foreseen, one_start())
    with pytest.raises(InputError, match="a pair in `blended` of round 1"):
        private.blended(one_start(), torch.full((CLIENTS, CLIENTS), 1 / 6).double())


# Similarity.


def test_products_of_released_halves_are_unbiased_and_norms_lose_their_noise():
    algorithm = method("adaptive_all_for_one")
    foreseen = seen(algorithm, rounds=1)
    simulation, x = simulation_of(small(), Setting()), one_start()
    exact = simulation.at(1).compare(x)
    found = []
    for seed in range(100):
        noisy = Mechanism(clip=50.0, noise=0.3, seed=seed)
        found.append(private_oracle(simulation.at(1), noisy, foreseen, x).compare(x))
    for name in ("cross", "own", "pooled", "own_pooled"):
        draws = torch.stack([getattr(one, name) for one in found])
        error = draws.std(0) / math.sqrt(len(found))
        off = (draws.mean(0) - getattr(exact, name)).abs()
        assert (off <= 5 * error + 1e-9).all(), name
        assert error.max() > 0.001, name


# Budgets.


def test_nobody_goes_on_where_one_client_would_exceed_the_budget():
    algorithm = method("fedavg")
    costs = [25.0 * c for c in cost(algorithm)]
    stopped, events = private_run(
        algorithm, NOISY, limits=Limits(of_all=2 * 25.0), costs=costs
    )
    two, _ = private_run(algorithm, NOISY, rounds=2)
    assert torch.equal(stopped.personal, two.personal)
    assert [state.stopped for state in stopped.states] == [0, 0, 0, 3, 3]
    assert len(events) == 2


@pytest.mark.parametrize("name", ["fedavg", "karula"])
def test_a_client_refuses_releases_beyond_its_own_budget(name):
    """To an average, and to a coordinator, who asks also those who take no part."""
    algorithm = method(name)
    costs = [25.0 * c for c in cost(algorithm)]
    run, events = private_run(
        algorithm, NOISY, limits=own_budgets({2: 25}), costs=costs
    )
    assert [len(event.links) for event in events] == [6, 5, 5, 5]
    expected = torch.tensor([4, 4, 1, 4, 4, 4]).double() * 25.0
    assert_close(run.states[-1].spent, expected)


def test_a_round_in_which_all_who_take_part_refuse_is_left_out_and_others_go_on():
    algorithm, some = method("fedavg"), torch.arange(CLIENTS) < 2
    rounds = [some, some, ~some]
    foreseen = plan_calls(algorithm, rounds, seed=0, label="it")
    costs = costs_of(algorithm, foreseen, rounds, seed=0)
    simulation, x = simulation_of(small(), Setting()), one_start()
    made = make_private(
        algorithm,
        foreseen,
        NOISY,
        simulation.names,
        limits=own_budgets({0: 25.0, 1: 25.0}),
        costs=[25.0 * c for c in costs],
    )
    state = made.init(x, simulation.at(0, purpose="init"))
    for t, active in enumerate(rounds, start=1):
        before, oracle = state, simulation.at(t, active)
        state, _ = made.step(state, oracle, torch.Generator())
        assert state.stopped == 0
        assert torch.equal(state.state.x, before.state.x) == (t == 2)
    assert_close(state.spent, torch.full((CLIENTS,), 25.0, dtype=torch.float64))


def test_calibrated_noise_spends_what_was_asked_for():
    costs = cost(method("all_for_one"))
    noise = noise_for_clients(costs, mu=1.5, clip=0.5)
    _, events = private_run(method("all_for_one"), Mechanism(0.5, noise))
    assert_close(float(totals(events, CLIENTS).max().sqrt()), 1.5)


# Gossip.


def test_decentralised_sgd_is_muffliato_where_noise_is_drawn_once_in_a_round():
    # Algorithm 6.3, with clipped steps: noise, then K exchanges of Chebyshev's.
    lr, clip, sigma, exchanges = 0.3, 0.05, 0.02, 3
    algorithm = method(
        "decentralised_sgd", lr=lr, exchanges=exchanges, accelerated=True
    )
    mechanism = Mechanism(clip, sigma, seed=4)
    run, events = private_run(algorithm, mechanism, rounds=3)
    kinds = [type(event) for event in events]
    assert kinds == [Input, Exchange, Exchange, Exchange] * 3
    w, gamma = events[1].weights.to_dense().double(), events[2].gamma
    assert events[1].gamma == 1.0 and gamma > 1
    theta = one_start()
    simulation = simulation_of(small(), Setting())
    size = theta.shape[1]
    for t in range(1, 4):
        oracle = simulation.at(t)
        (moved,) = oracle.each(one_step, theta, lr=lr)
        away = moved - theta
        away *= (clip / away.norm(dim=1, keepdim=True)).clamp(max=1)
        stream = seeds.key(4, "privacy", t, "mix", 0, 0)
        drawn = normals(stream, simulation.names, size, torch.float64)
        before = theta + away + sigma * drawn
        now = w @ before
        for _ in range(exchanges - 1):
            before, now = now, gamma * (w @ now) + (1 - gamma) * before
        theta = now
    assert_close(run.personal, theta, rtol=1e-9, atol=1e-11)


def one_step(clients, x, *, lr):
    """A client program: one gradient step."""
    return x - lr * clients.grad(x)


def test_pairs_of_one_round_of_gossip_have_joint_losses_and_of_more_the_total():
    # Clients 0 - 1 - 2 on a path, W of thirds, one exchange in a round. In the second
    # round the step of client 1 depends on the row of client 0: no joint loss, though
    # of inputs that are fixed client 2 would learn (1/9) / (1/9 + 1) of client 0.
    mixing = torch.tensor([[2.0, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    federation = small(3)
    algorithm = decentralised_sgd(mixing)
    everybody = torch.ones(3, dtype=torch.bool)
    simulation = simulation_of(federation, Setting())
    for rounds, expected in ((1, (0.0, 25.0)), (2, (50.0, 50.0))):
        foreseen = plan_calls(algorithm, [everybody] * rounds, seed=0, label="it")
        made = make_private(algorithm, foreseen, NOISY, simulation.names)
        run = trace_rounds(made, simulation, one_start()[:3], rounds)
        found = by_pairs(events_of(run.states[-1].ledger), 3)
        assert_close(found[0, [2, 1]], torch.tensor(expected).double())


def test_a_release_is_an_event_of_its_round():
    _, events = private_run(method("wga_bc"), NOISY, rounds=2)
    assert {event.round for event in events} == {1, 2}
    assert all(isinstance(event, Release) for event in events)
