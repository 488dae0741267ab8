"""Methods that would reveal data: each gets noise, or is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from coterie.checks import InputError
from coterie.conformance.cases import Setting, simulation_of
from coterie.conformance.federations import CLIENTS, small_federation
from coterie.privacy.mechanisms import Mechanism, events_of, make_private, plan_calls
from coterie.privacy.mechanisms.dry_run.origins import (
    is_of_data,
    of_data,
    refuse_sent_on,
    track_marks,
)
from coterie.privacy.mechanisms.watching import marks_of, with_marks
from coterie.types import Algorithm, Rows
from support.private_runs import EVERYBODY, one_start, seen
from support.refusals import refuses

ROUNDS = 22
LATE = 20


class State(NamedTuple):
    """Models, rounds so far, and what a method hides."""

    x: Rows
    hidden: Rows
    t: int = 0


def start(x, oracle):
    return State(x, torch.zeros_like(x))


def ones(rows):
    return rows.new_ones(len(rows))


def yes(g: Tensor) -> Tensor:
    """A yes or no of each client, which is the same for all doubles."""
    return (g.norm(dim=1, keepdim=True) < 1e9).to(g)


def method(leak, use=lambda state, oracle: state.x) -> Algorithm:
    """FedAvg that leaks: `leak(oracle, state, g)` gives the next hidden rows."""

    def step(state, oracle, rng):
        g = oracle.grads(state.x)
        x = oracle.average(ones(g), state.x - 0.01 * g)
        hidden = leak(oracle, state, g)
        return State(x, state.hidden if hidden is None else hidden, state.t + 1), {}

    return Algorithm(start, step, use)


def long_yes(g: Tensor) -> Tensor:
    """The same, of the length of a model."""
    return yes(g).expand_as(g).clone()


def averaging(rows, shares=ones, since=0):
    """A leak by rows, or by how they are weighed, from some round on."""

    def leak(oracle, state, g):
        if state.t >= since:
            oracle.average(shares(g), rows(g))

    return leak


def shares_of_data(g: Tensor) -> Tensor:
    return yes(g)[:, 0] + 1


# Late, and otherwise than without data.


late_number = averaging(yes, since=LATE)


def in_groups(oracle, state, g):
    groups = (g.norm(dim=1) < 1e9).long()
    oracle.average(ones(g), torch.zeros_like(g), groups)


def in_pairs(oracle, state, g):
    oracle.compare(state.x, pairs=(yes(g) * yes(g).T).bool())


def by_a_branch(oracle, state, g):
    if float(g.norm()) > 1e9:
        oracle.average(ones(g), torch.ones_like(g))


def by_the_order(oracle, state, g):
    first, second = torch.zeros_like(g), torch.ones_like(g)
    if bool((g > 1e9).any()):
        first, second = second, first
    oracle.average(ones(g), first)
    oracle.average(ones(g), second)


def by_an_error(oracle, state, g):
    try:
        torch.linalg.cholesky(g.T @ g + 1e9 * torch.eye(g.shape[1]).to(g))
        told = 1.0
    except torch.linalg.LinAlgError:
        told = 0.0
    oracle.average(ones(g), torch.full_like(g, told))


def by_the_round_before(oracle, state, g):
    """A number that Python keeps from one round to the next."""
    by_the_round_before.kept.append(float(g.norm()) > 1e9)
    oracle.average(ones(g), torch.full_like(g, by_the_round_before.kept[-2]))


by_the_round_before.kept = [False]


def in_the_state(oracle, state, g):
    oracle.average(ones(g), state.hidden)
    return long_yes(g)


def deciding(clients, x):
    return x if float(clients.grad(x).sum()) < 1e9 else -x


def asked(clients, x, *, told):
    return x + told


def by_a_program(oracle, state, g):
    (row,) = oracle.each(deciding, torch.ones_like(g)[:, :2])
    oracle.average(ones(g), row)


def by_an_option(oracle, state, g):
    (row,) = oracle.each(asked, torch.zeros_like(g)[:, :2], told=float(yes(g).sum()))
    oracle.average(ones(g), row)


def by_who_is_asked(oracle, state, g):
    (row,) = oracle.each(asked, torch.zeros_like(g)[:, :2], who=g[:, 0] < 1e9, told=1.0)
    oracle.average(ones(g), row)


def by_weights(oracle, state, g):
    """What is mixed is known, but how it is tells of data, and is sent on."""
    weights = torch.diag(yes(g)[:, 0])
    told = oracle.mix(weights, torch.ones_like(g)[:, :2])
    oracle.average(ones(g), told)


def by_blends(oracle, state, g):
    """Nobody is asked at anybody's model: all blend their own gradients alone."""
    own = oracle.blended(state.x, torch.eye(len(g)).to(g))
    oracle.average(ones(g), own)


def by_a_caught_refusal(oracle, state, g):
    if state.t < LATE:
        return
    try:
        oracle.average(ones(g), yes(g))
    except InputError:
        pass


def by_a_function_of_python(oracle, state, g):
    found = list[float]()
    yes(g)[:1].clone().apply_(lambda value: found.append(value) or value)
    oracle.average(ones(g), torch.full_like(g, found[0]))


def by_how_much_is_drawn(oracle, state, g):
    rng = torch.Generator().manual_seed(0)
    torch.poisson(1000 * yes(g), generator=rng)
    row = torch.rand(1, 1, generator=rng).to(g)
    oracle.average(ones(g), row.expand_as(g).clone())


def by_running_statistics(oracle, state, g):
    norm = torch.nn.BatchNorm1d(1, momentum=1.0, dtype=g.dtype)
    norm(yes(g))
    oracle.average(ones(g), norm.running_mean.expand_as(g).clone())


def looking_afterwards(oracle, state, g):
    """After it has sent, and so before it sends again."""
    float(g.norm())


REFUSED = {
    "function of python": by_a_function_of_python,
    "map_": averaging(
        lambda g: (
            torch.zeros_like(g[:1, :1])
            .map_(yes(g)[:1], lambda _, value: value)
            .expand_as(g)
            .clone()
        )
    ),
    "how much is drawn": by_how_much_is_drawn,
    "shares": averaging(torch.zeros_like, shares_of_data),
    "groups": in_groups,
    "pairs": in_pairs,
    "branch": by_a_branch,
    "order": by_the_order,
    "shape": averaging(
        lambda g: torch.full_like(g, len((g.norm(dim=1) < 1e9).nonzero()))
    ),
    "error": by_an_error,
    "list": averaging(
        lambda g: torch.tensor([[float(r.norm() < 1e9)] for r in g]).to(g)
    ),
    "tensors of a list": averaging(
        lambda g: torch.tensor([(r.norm() < 1e9) for r in g]).to(g)[:, None]
    ),
    "round before": by_the_round_before,
    "program": by_a_program,
    "option": by_an_option,
    "who is asked": by_who_is_asked,
    "weights": by_weights,
    "blends": by_blends,
}


@pytest.mark.parametrize("leak", REFUSED.values(), ids=REFUSED)
def test_what_tells_data_is_refused_before_training(leak):
    refuses("it cannot be trained privately: ", seen, method(leak), rounds=ROUNDS)


NUMBERS, READING = "by `average` clients send num", "reads numbers that depend on cl"


@pytest.mark.parametrize(
    ("leak", "message"),
    [
        (averaging(lambda g: (g.sum(1, keepdim=True) < 1e9).to(g)), NUMBERS),
        (averaging(lambda g: 0 * g[:, :2]), NUMBERS),
        (averaging(lambda g: torch.where(g[:, :1].isnan(), 1.0, 2.0)), NUMBERS),
        (by_a_branch, READING),
        (looking_afterwards, READING),
    ],
)
def test_what_no_world_shows_is_refused_in_the_first_round(leak, message):
    refuses(f"it cannot .*{message}", seen, method(leak), rounds=1)


def test_numbers_that_are_made_of_releases_may_leave():
    leak = averaging(lambda g: torch.zeros_like(g[:, :2]))
    found = seen(method(leak), rounds=1)
    assert [call.fresh for call in found.rounds[1]] == [(True,), (False,)]


def test_what_a_client_program_decides_is_its_clients():
    def leak(oracle, state, g):
        (row,) = oracle.each(deciding, state.x)
        oracle.average(ones(g), row)

    found = seen(method(leak), rounds=2)
    assert [call.fresh for calls in found.rounds[1:] for call in calls] == [(True,)] * 4


@pytest.mark.parametrize(
    "leak",
    [averaging(long_yes, since=LATE), in_the_state, by_running_statistics],
    ids=["late", "state", "statistics"],
)
def test_rows_of_a_model_s_length_get_noise_whenever_they_come(leak):
    found = seen(method(leak), rounds=ROUNDS)
    last = found.rounds[-1]
    assert [call.fresh for call in last] == [(True,), (True,)]


def chosen_weights_sent_on(oracle, state, g):
    """The second exchange sends mixtures, by weights that nobody released."""
    oracle.mix((yes(g) * yes(g).T) / len(g), state.x, exchanges=2)


def test_what_neighbours_send_on_is_made_of_releases_alone():
    message = "`exchanges` of `mix` must be 1 .* got 2"
    refuses(message, seen, method(chosen_weights_sent_on), rounds=1)
    with pytest.raises(InputError, match=message):
        trained(method(chosen_weights_sent_on), method(lambda *_: None), 1)


def test_the_factor_of_exchanges_is_not_made_of_data():
    weights, factor = torch.eye(2), of_data(torch.ones(()))
    refuse_sent_on(weights, 2, 1.5)
    with pytest.raises(InputError, match="`exchanges` and `gamma` of `mix` must not"):
        refuse_sent_on(weights, 2, factor)


def test_a_last_step_before_use_sends_nothing_of_data():
    def use(state, oracle):
        return oracle.average(ones(state.x), yes(oracle.grads(state.x)))

    refuses("cannot be trained privately", seen, method(lambda *_: None, use), rounds=1)


# In training, where a method does what it did not do without data.


def trained(algorithm: Algorithm, planned: Algorithm, rounds: int) -> Any:
    """The last state of a method that was foreseen as another."""
    foreseen = seen(planned, rounds=rounds)
    simulation = simulation_of(small_federation(), Setting())
    mechanism = Mechanism(0.5, 1.0)
    made = make_private(algorithm, foreseen, mechanism, simulation.names)
    state = made.init(one_start(), simulation.at(0, purpose="init"))
    for t in range(1, rounds + 1):
        rng = torch.Generator().manual_seed(t)
        state, _ = made.step(state, simulation.at(t), rng)
    return made, state


own_rows = averaging(long_yes)


def caught(oracle, state, g):
    try:
        own_rows(oracle, state, g)
    except InputError:
        pass


def remembered(oracle, state, g):
    """Made of data in one round, sent in the next."""
    oracle.average(ones(g), state.hidden if state.t else torch.ones_like(g))
    return long_yes(g)


def wide(clients, x, a):
    return x, a.new_zeros(len(a), 1 + int(bool(clients.grad(x).norm() < 1e9)))


def double(clients, x, a):
    large = bool(clients.grad(x).norm() < 1e9)
    return x, a.to(torch.float32 if large else a.dtype)


def by_a_shape_of_a_program(oracle, state, g):
    _, found = oracle.each(wide, state.x, g[:, :1])
    oracle.average(ones(g), torch.full_like(g, found.shape[1]))


def by_a_type_of_a_program(oracle, state, g):
    _, found = oracle.each(double, state.x, g[:, :1])
    oracle.average(ones(g), torch.full_like(g, found.dtype == g.dtype))


@pytest.mark.parametrize(
    ("leak", "message"),
    [
        (by_a_shape_of_a_program, "results of `wide` must have the shapes and types"),
        (by_a_type_of_a_program, "results of `double` must have the shapes and types"),
        (own_rows, "in round 1: the method sends rows by `average` that depend on"),
        (
            averaging(torch.ones_like, shares_of_data),
            "in round 1: the weights of `average`, which others see",
        ),
        (
            averaging(lambda g: torch.full_like(g, float(g.norm()))),
            "in round 1 the method cannot be .* it reads numbers",
        ),
        (caught, "in round 1: the method sends rows by `average`"),
        (remembered, "in round 2: the method sends rows by `average`"),
    ],
)
def test_training_stops_before_data_leave_that_were_not_foreseen(leak, message):
    refuses(message, trained, method(leak), method(averaging(torch.ones_like)), 3)


@pytest.mark.parametrize("leak", [late_number, by_a_caught_refusal])
def test_numbers_that_come_late_stop_the_training(leak):
    """Losses might be released for them, which is planned for sixteen rounds only."""
    with pytest.raises(InputError, match="`average` in round 21 was not planned"):
        trained(method(leak), method(leak), ROUNDS)


def test_a_large_released_value_is_no_way_out():
    """A branch that depends on a release, and that the dry run did not take."""

    def leak(oracle, state, g):
        mean = oracle.average(ones(g), torch.ones_like(g))
        rows = long_yes(g) if float(mean.sum()) > 0 else mean
        oracle.average(ones(g), rows)

    def planned(oracle, state, g):
        for _ in range(2):
            oracle.average(ones(g), torch.ones_like(g))

    with pytest.raises(InputError, match="in round 1: the method sends rows by"):
        trained(method(leak), method(planned), 1)


def test_what_a_state_hides_is_known_after_a_stop():
    """A state from a file has lost its marks, but not the list of them."""
    keeping = method(lambda oracle, state, g: g.clone())
    _, state = trained(keeping, keeping, 2)
    assert state.marks == [False, False, True]
    copied = state._replace(state=State(*(_copy(part) for part in state.state)))
    assert not is_of_data(copied.state.hidden)
    with_marks(copied.state, copied.marks)
    assert is_of_data(copied.state.hidden) and not is_of_data(copied.state.x)
    with_marks(copied.state, [False])  # of another state: all of it counts as data
    assert is_of_data(copied.state.x)


def _copy(part):
    return torch.tensor(part.tolist()) if isinstance(part, Tensor) else part


def test_reading_is_not_forgotten_in_the_next_round():
    with track_marks() as following:
        float(of_data(torch.ones(2)).sum())
    assert marks_of(State(torch.ones(1), torch.ones(1)), following)[0]


def test_a_watched_run_is_the_run_that_is_planned():
    """Four releases of one row each in two rounds; nothing else is in the ledger."""
    algorithm = method(in_the_state)
    _, state = trained(algorithm, algorithm, 2)
    events = events_of(state.ledger)
    assert [event.verb for event in events] == ["average"] * 4


def test_absent_clients_do_not_get_their_own_rows_back_as_known_ones():
    """In a mixture the absent find their own rows, which were never released."""
    away = EVERYBODY.clone()
    away[2] = False

    def leak(oracle, state, g):
        weights = torch.eye(CLIENTS).to(g)
        told = oracle.mix(weights, long_yes(g))
        oracle.average(ones(g), told[:, :2])

    with pytest.raises(InputError, match="cannot be trained privately: by `average`"):
        plan_calls(method(leak), [away] * 2, seed=0, label="it")
    assert (
        len(plan_calls(method(leak), [EVERYBODY] * 2, seed=0, label="it").rounds) == 3
    )
