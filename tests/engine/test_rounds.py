"""Claims about the synchronous loop."""

from __future__ import annotations

import itertools

import pytest
import torch

from coterie.algorithms.apfl import apfl
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.engine import rounds
from support.quadratics import start
from support.rounds import simulate


def ran(algorithm, federation, x=None, **settings) -> list[rounds.Round]:
    x = start(6, 26) if x is None else x
    clients = simulate(federation, batch_size=3)
    return list(rounds.run_rounds(algorithm, clients, x, **settings))


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, 10), (0.5, 5), (0.34, 3), (0.01, 1)]
)
def test_each_round_has_the_same_number_of_participants_and_never_none(share, expected):
    sizes = {
        int(rounds.participants(10, share, seed=0, t=t).sum()) for t in range(1, 30)
    }
    assert sizes == {expected}


def test_participants_are_seeded_and_change_from_round_to_round():
    def who(seed: int, t: int) -> list[bool]:
        return rounds.participants(10, 0.5, seed, t).tolist()

    assert who(0, 1) == who(0, 1)
    assert who(0, 1) != who(0, 2)
    assert who(0, 1) != who(1, 1)


def test_everybody_takes_part_equally_often():
    turns = sum(rounds.participants(6, 0.5, 0, t).double() for t in range(400))
    # Each client's count is binomial(400, 1/2); four standard deviations are 40.
    assert ((turns - 200).abs() < 40).all()


def test_rounds_are_numbered_from_one_and_carry_what_happened(classification):
    found = ran(local(steps=2), classification, rounds=3, participation=0.5)
    assert [r.t for r in found] == [1, 2, 3]
    for r in found:
        assert torch.equal(r.active, rounds.participants(6, 0.5, 0, r.t))
        # Two steps with minibatches of three.
        assert r.gradients.tolist() == [6.0 if a else 0.0 for a in r.active]
        assert r.state.t == 2 * r.t
        assert r.info == {}
        assert r.traffic == (0, 0)


def test_resuming_equals_not_stopping(classification):
    sizes = classification.train.size
    settings = {"rounds": 6, "seed": 3, "participation": 0.5}

    def algorithm():
        return fedavg(sizes, momentum=0.9, schedule="inverse(5)")

    whole = ran(algorithm(), classification, **settings)
    x, begin = torch.zeros(6, 26, dtype=torch.float64), (2, whole[1].state)
    rest = ran(algorithm(), classification, x, start=begin, **settings)
    assert [r.t for r in rest] == [3, 4, 5, 6]
    for one, other in zip(whole[2:], rest, strict=True):
        assert torch.equal(one.state.x, other.state.x)
        assert torch.equal(one.state.v, other.state.v)


def test_a_round_is_computed_only_when_it_is_asked_for(classification):
    asked = []

    class Watched:
        def __init__(self) -> None:
            self.inner = simulate(classification, batch_size=3)

        def __len__(self) -> int:
            return len(self.inner)

        def at(self, t, active=None, *, purpose="step"):
            asked.append(t)
            return self.inner.at(t, active, purpose=purpose)

    run = rounds.run_rounds(local(), Watched(), start(6, 26), rounds=10**9)
    assert asked == []
    list(itertools.islice(run, 2))
    assert asked == [0, 1, 2]  # to begin, and for each round


def test_the_generator_of_a_round_is_named_by_seed_and_round(classification):
    def draws(seed: int) -> list[float]:
        seen: list[float] = []
        inner = local()

        def step(state, oracle, rng):
            seen.append(float(torch.rand((), generator=rng)))
            return inner.step(state, oracle, rng)

        ran(inner._replace(step=step), classification, rounds=3, seed=seed)
        return seen

    assert draws(0) == draws(0)
    assert len(set(draws(0) + draws(1))) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "`rounds` must be at least 1, got 0"),
        ({"rounds": 1, "participation": 0.0}, "`participation` must be greater than 0"),
        ({"rounds": 1, "participation": 1.5}, "`participation` must be at most 1"),
    ],
)
def test_bad_settings_are_refused_by_name(classification, settings, message):
    with pytest.raises(InputError, match=message):
        ran(local(), classification, **settings)


def in_place(algorithm, federation, x=None, **settings):
    x = start(6, 26) if x is None else x
    clients = simulate(federation, batch_size=3)
    options = {"rounds": 6, "participation": 0.5, "in_place": True} | settings
    return rounds.run_rounds(algorithm, clients, x, **options)


def test_rounds_in_place_write_to_the_memory_of_the_state(classification):
    x = start(6, 26)
    before = x.clone()
    first, *_, last = in_place(local(momentum=0.5), classification, x)
    assert first.state.x.data_ptr() == last.state.x.data_ptr()
    assert torch.equal(x, before)
    expected = ran(local(momentum=0.5), classification, rounds=6, participation=0.5)
    assert torch.equal(last.state.x, expected[-1].state.x)
    assert torch.equal(last.state.v, expected[-1].state.v)


def test_a_round_in_place_can_be_undone(classification):
    method, run = local(momentum=0.5), ran
    expected = run(method, classification, rounds=2, participation=0.5)
    for r in in_place(method, classification):
        if r.t == 3:
            r.change.undo()
            break
        state = r.state
    assert torch.equal(state.x, expected[-1].state.x)
    assert torch.equal(state.v, expected[-1].state.v)


def test_in_place_a_round_makes_copies_of_active_rows_only(classification):
    shapes = []

    def step(state, oracle, rng):
        shapes.append((state.x.shape, state.v.shape, oracle.active.tolist()))
        return inner.step(state, oracle, rng)

    inner = fedavg(classification.train.size, momentum=0.5)
    last = list(in_place(inner._replace(step=step), classification))[-1]
    assert shapes == [((3, 26), (3, 26), [True] * 3)] * 6
    assert last.state.x.stride(0) == 0  # one row in memory
    assert last.gradients.tolist() == [3.0 if a else 0.0 for a in last.active]


def test_in_place_rows_that_a_step_reports_need_an_info_of_all(classification):
    method = apfl(classification.train.size)
    (*_, last) = in_place(method, classification)
    assert torch.equal(last.info["mixture"], last.state.a)
    silent = method._replace(info=lambda state: {})
    with pytest.raises(InputError, match="reports rows of 'mixture', so the algorithm"):
        next(in_place(silent, classification))


def test_methods_with_other_rows_and_full_rounds_are_not_in_place(classification):
    everybody = in_place(local(), classification, participation=1.0)
    assert all(r.change is None for r in everybody)
