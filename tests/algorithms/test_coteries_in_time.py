"""Claims about coteries where nobody waits."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.coteries import coteries, group_of, halves_of, in_use
from coterie.algorithms.coteries_task import (
    CHOOSE,
    FIRST,
    LOOK,
    LOOKS,
    NOTHING,
    TaskResult,
)
from coterie.checks import InputError
from coterie.collaboration.divisions import CONTEST, PIECES, REST, TRIAL
from coterie.engine.clocks import clock
from coterie.engine.events import EventLoop
from coterie.engine.rounds import run_rounds
from coterie.optim.steps import LocalDescent, sgd
from coterie.types import Arrivals
from support.federations import error
from support.linear_groups import (
    are_found,
    four_groups,
    linear_clients,
    two_groups,
    without_validation,
)
from support.quadratics import REAL, zeros
from support.rounds import simulate

# Sums in another order, over a hundred steps in double precision.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def begun(federation, paces, *, batch_size=4, **options) -> EventLoop:
    algorithm = coteries(federation.train.size, **options)
    simulation, x = simulate(federation, batch_size), zeros(federation)
    return EventLoop(algorithm, simulation, x, clock=paces)


def uneven(**options):
    return two_groups(train=[4, 9, 12, 7, 8, 20, 5, 6], **options)


# Phases at the end of each round, and the number of groups, one look after the other.
PHASES = {
    # Groups are so clear that the contest begins at once, and later needs no other.
    "at once": (uneven, {"steps": 2}, 3, "T1 C1 C1 R2 T2 T2 T2 R2 R2 R2"),
    # Nothing is sure: the next rest is three times as long.
    "in vain": (
        lambda: two_groups(noise=3.0),
        {"steps": 2},
        3,
        "T1 T1 T1 C1 C1 R1 R1 R1 T1 T1",
    ),
    "uniform": (
        lambda: uneven(noise=1.0),
        {"steps": 2, "weighting": "uniform"},
        3,
        "T1 C1 C1 R2 T2 T2 T2 R2 R2 R2",
    ),
    "rare looks": (lambda: two_groups(train=40), {"steps": 4}, 7, "T1 C1 C1 R2 T2 R2"),
    "pieces": (four_groups, {"steps": 30}, 1, "P1 P1 R4 T4 R4 R4"),
    "every round": (
        lambda: two_groups(noise=0.5),
        {"steps": 6},
        1,
        "T1 C1 C1 R2 T2 R2",
    ),
}


@pytest.mark.parametrize("case", PHASES)
def test_without_delays_it_is_the_method_of_rounds_in_every_phase(case):
    made, options, every, phases = PHASES[case]
    federation, seen, time = made(), [], 0.0
    run = begun(federation, clock("constant(1)"), **options)
    algorithm = coteries(federation.train.size, **options)
    simulation, x = simulate(federation, 4), zeros(federation)
    rounds = every * len(phases.split())
    for r in run_rounds(algorithm, simulation, x, rounds=rounds):
        # A gradient takes a second; in contests there are half as many more.
        time += options["steps"] * (
            2 + (run.state.server.clock.phase in (CONTEST, PIECES))
        )
        while run.updates < len(federation) * r.t:
            event = run.step()
        assert event.time == time
        here, there = run.state, r.state
        assert_same_server(here.server, there.server)
        assert_same_clients(here, there)
        assert_close(run.personal(), in_use(there), **CLOSE)
        assert (here.number, here.every) == (r.t, every)
        if (r.t - 1) % every == 0:
            seen.append("RTCP"[here.server.clock.phase] + str(here.server.groups))
    assert " ".join(seen) == phases


def assert_same_server(here, there):
    """What a coordinator remembers is the same, names of groups with it."""
    for name in ("member", "pair", "pick"):
        assert torch.equal(getattr(here, name), getattr(there, name))
    for name in ("shares", "samples", "sketch", "evidence"):
        assert_close(getattr(here, name), getattr(there, name), **CLOSE)
    assert here.clock == pytest.approx(there.clock, abs=1e-12)


def assert_same_clients(here, there):
    """What clients hold and know is the same."""
    member = here.server.member
    assert torch.equal(here.choice, there.choice)
    assert_close(here.models[member], group_of(there), **CLOSE)
    for name in ("own", "drift", "drifts", "ballot"):
        assert_close(getattr(here, name), getattr(there, name), **CLOSE)
    # In rounds, an offset from a group that has divided counts as zero.
    offset = there.offset.masked_fill(there.lost[:, None], 0)
    assert_close(here.offset, offset, **CLOSE)
    most = torch.stack([here.level, here.most]).expand(len(member), 2)
    assert_close(most, there.most, **CLOSE)
    if here.server.clock.phase != REST:
        theirs = halves_of(there)
        halves = here.halves[here.server.pair][:, : theirs.shape[1]]
        assert_close(halves, theirs, **CLOSE)


def test_an_answer_moves_the_groups_model_by_its_share_from_where_it_began():
    """By a loop of its own, in a round that two of eight clients cannot end."""
    federation, steps, lr = uneven(noise=0.5), 2, 0.1
    paces = clock("constant(1)", speeds=[1, 2.3, *[1e6] * 6])
    run = begun(federation, paces, steps=steps, lr=lr)
    simulation, share = simulate(federation, 4), federation.train.size.to(REAL)
    share, w = share / share.sum(), zeros(federation)[0]
    began, work = {0: w, 1: w}, {"rule": LocalDescent(lr), "steps": steps, "t": 0}
    late, offset = False, {}
    for _ in range(9):
        (client,) = run.step().clients
        task, x = run.tasks[client], began[client].expand(8, -1)
        oracle = simulation.at(task)
        # Steps of its own come first, and in the first round also a first look.
        for _ in range(2 if task == 1 else 1):
            oracle.each(sgd, x, x[:, :0], **work)
        u = oracle.each(sgd, x, x[:, :0], **work)[0][client]
        w = w + share[client] * (u - began[client])
        assert_close(run.state.models[0], w, **CLOSE)
        # By what it differs: all of it at first, and then a mean that follows it.
        before = offset.get(client, u - w)
        offset[client] = before + (u - w - before) / 4
        assert_close(run.state.offset[client], offset[client], **CLOSE)
        began[client] = w
        late |= client == 1
    assert late and run.state.number == 0


def ended(federation, speeds, until, **options):
    """A run until that time, and who had yet to choose between groups meanwhile."""
    paces = clock("lognormal(1, 0.3)", speeds=speeds)
    run, waited = begun(federation, paces, **options), torch.zeros(8, dtype=torch.bool)
    for event in run.until(until):
        waited |= event.state.other >= 0
    return run, waited


def test_who_comes_late_to_a_trial_takes_its_half_in_the_contest():
    """Two of eight take ten times as long; a first guess was wrong for one of them."""
    federation = two_groups(8, noise=0.5)
    run, waited = ended(federation, [10, 10, 1, 1, 1, 1, 1, 1], 600.0, steps=4)
    assert are_found(run.state.server.member, federation.clusters)
    assert not waited.any()
    assert error(federation, run.personal()) < error(federation, run.state.own) / 2


def test_who_was_away_for_all_of_a_trial_chooses_after_its_group_has_divided():
    federation = two_groups(8, noise=0.5)
    run, waited = ended(federation, [30, 30, 1, 1, 1, 1, 1, 1], 600.0, steps=4)
    assert waited.tolist() == [True] * 2 + [False] * 6
    assert (run.state.other < 0).all()
    assert are_found(run.state.server.member, federation.clusters)


def test_who_is_slow_does_not_hold_up_the_others():
    """Groups are found while two of eight have not yet answered once."""
    federation = two_groups(8, noise=0.5)
    run = begun(
        federation, clock("constant(1)", speeds=[1e6, 1e6, 1, 1, 1, 1, 1, 1]), steps=4
    )
    for _ in run.until(150.0):
        pass
    assert run.tasks[:2] == [0, 0]
    assert are_found(run.state.server.member[2:], federation.clusters[2:])
    assert (run.state.other[:2] >= 0).all()


def test_what_is_sent_are_shared_models_and_a_few_numbers():
    """Of D = 3 and N = 8: nothing of models that are a client's own."""
    d, n, every, federation = 3, 8, 3, uneven()
    run = begun(federation, clock("constant(1)"), steps=2)
    total = 0.0

    def values(number):
        """Down and up, by hand: 6 notes, 3 first, 4 told, a half, 5 of evidence."""
        phase, looks = run.state.server.clock.phase, number and number % every == 0
        told = 3 if number == 0 else 4 if number % (3 * every) == 2 * every else 0
        heard = int(looks and phase != REST)
        heard += 5 if looks and run.state.server.clock.asks else 0
        models = {REST: (1, 1), TRIAL: (2 + bool(looks), 1), CONTEST: (3, 2)}[phase]
        return d * models[0] + 6 + (phase != REST), d * models[1] + told + heard

    phases = set()
    for number in range(12):
        phases.add(run.state.server.clock.phase)
        total += n * sum(values(number))
        while run.updates < n * (number + 1):
            run.step()
        assert run.sent == (total + n * values(number + 1)[0], 0)  # and the next task
    assert phases == {REST, TRIAL, CONTEST}


def test_a_client_that_missed_a_look_looks_with_its_next_task_and_tells_every_third():
    flow = coteries(torch.ones(6)).flow
    state = flow.init(torch.zeros(6, 3, dtype=REAL))

    def looks(number):
        state.number = number
        return flow.task(state, 2, 0.0).kind // 2

    assert looks(0) == FIRST
    state.every = 4
    # Clients choose in rounds 8, 20, 32, ...; the look of round 20 was missed.
    asked = [(3, NOTHING), (5, LOOK), (7, NOTHING), (9, CHOOSE), (10, NOTHING)]
    asked += [(13, LOOK), (25, CHOOSE), (28, LOOK), (29, NOTHING), (32, CHOOSE)]
    assert [(number, looks(number)) for number, _ in asked] == asked


def arrives(flow, state, client, task, pick, *, by=0.0):
    """A client ends its task: shared models moved by so much, its own by one."""
    own, group, _, cap, _, halves, _ = (row[None].clone() for row in task.rows)
    half, losses = halves[:, pick], torch.ones(1, 4, dtype=REAL)
    found = TaskResult(
        own=own + 1,
        group=group[:, :0],
        group_start=group[:, :0],
        half=half + by,
        half_start=half.clone(),
        pick=torch.tensor([pick]),
        losses=losses,
        samples=cap,
        usual=cap,
        told=losses,
        exact=losses,
        evidence=torch.ones(1, 5, dtype=REAL),
    )
    flow.arrive(state, Arrivals(1.0, [client], found, [1], 0, 0, task.kind, []))


def divided():
    """A flow in which client 3 has yet to choose between groups 0 and 1."""
    flow = coteries(torch.ones(6)).flow
    state = flow.init(torch.zeros(6, 3, dtype=REAL))
    state.models[:3] = torch.arange(3.0, dtype=REAL)[:, None]
    state.looked[:], state.every = 0, 5
    member = torch.tensor([0, 0, 0, 0, 1, 1])
    state.server = state.server._replace(member=member, pair=member)
    state.other[3] = 1
    return flow, state


@pytest.mark.parametrize("pick", [0, 1])
def test_who_has_yet_to_choose_gets_both_models_and_moves_that_which_it_takes(pick):
    flow, state = divided()
    task = flow.task(state, 3, 0.0)
    assert task.kind // 2 == LOOKS * TRIAL + LOOK
    assert_close(task.rows[5], state.models[:2])
    state.offset[3], state.ballot.looks[3] = 8.0, 1.5
    arrives(flow, state, 3, task, pick, by=1.0)
    assert int(state.server.member[3]) == pick and int(state.other[3]) == -1
    assert int(state.server.pair[3]) == pick  # it tries halves of that group
    part = [1 / 4, 1 / 3][pick]  # of the group that it is in now
    moved = torch.arange(3.0, dtype=REAL)
    moved[pick] += part
    assert_close(state.models[:3, 0], moved)
    # Who leaves begins anew with its offset, and all that it knew counts as one look.
    apart = 1 - part if pick else 8 + (1 - part - 8) / 4
    assert_close(state.offset[3], torch.full((3,), apart, dtype=REAL))
    assert float(state.ballot.looks[3]) == (1 if pick else 1.5)


def test_a_client_that_joins_while_pieces_are_tried_has_a_piece_of_its_new_group():
    flow, state = divided()
    task = flow.task(state, 3, 0.0)
    clock = state.server.clock._replace(phase=PIECES)
    pair = torch.tensor([0, 0, 1, 1, 2, 2])  # two pieces of group 0, one of group 1
    state.server = state.server._replace(clock=clock, pair=pair)
    arrives(flow, state, 3, task, 1)
    assert int(state.server.member[3]) == 1
    assert state.server.pair.tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("pick", [0, 1])
def test_who_was_busy_through_two_divisions_goes_to_the_half_that_it_chose(pick):
    flow, state = divided()
    task = flow.task(state, 3, 0.0)  # offers group 0 and group 1
    member = torch.tensor([0, 0, 2, 0, 1, 1])
    state.server = state.server._replace(member=member)
    state.other[3], state.since[3] = 2, -1
    arrives(flow, state, 3, task, pick)
    # Who stays in the group that has divided once more has yet to choose there.
    assert int(state.server.member[3]) == (1 if pick else 0)
    assert int(state.other[3]) == (-1 if pick else 2)


@pytest.mark.parametrize(
    ("phase", "stage"), [(TRIAL, 1), (CONTEST, 1), (TRIAL, 3), (REST, 2)]
)
def test_an_answer_counts_for_halves_that_still_compete_and_for_nothing_else(
    phase, stage
):
    flow, state = divided()

    def goes_on(phase, stage):
        now = state.server.clock._replace(phase=phase)
        state.server, state.stage = state.server._replace(clock=now), stage

    goes_on(TRIAL, 1)
    state.other[3], state.number = -1, 5
    state.halves[:] = torch.arange(2.0, dtype=REAL)[:, None]
    task = flow.task(state, 3, 0.0)
    assert task.kind // 2 == LOOKS * TRIAL + LOOK
    goes_on(phase, stage)  # it was busy meanwhile
    halves, models, counts = state.halves.clone(), state.models.clone(), stage == 1
    arrives(flow, state, 3, task, 1, by=1.0)
    # Alone in the second half, it moves that by all that it did.
    halves[0, 1] += float(counts)
    assert_close(state.halves, halves)
    assert int(state.server.pick[3]) == counts
    assert bool(state.server.evidence.total[3].any()) is counts
    assert bool(state.heard[3]) is counts
    if phase != TRIAL:  # where the whole is made of halves
        assert_close(state.models, models)
    # What a client did for itself is its own.
    assert_close(state.own[3], torch.ones(3, dtype=REAL))


def test_it_needs_validation_data_of_somebody_who_has_answered():
    federation = without_validation(two_groups())
    run = begun(federation, clock("constant(1)"))
    with pytest.raises(InputError, match="needs validation data"):
        run.step()


def test_where_all_are_alike_all_stay_together_whoever_is_slow():
    federation = linear_clients(torch.ones(6, 3, dtype=REAL), noise=1.0, seed=16)
    run = begun(federation, clock("lognormal(1, 0.5)", speeds=[5, 1, 1, 1, 1, 1]))
    for _ in run.until(300.0):
        pass
    assert run.state.server.groups == 1
    assert error(federation, run.personal()) < error(federation, run.state.own) / 2
