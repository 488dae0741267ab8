"""How settings are drawn, judged on folds and chosen, without training."""

from __future__ import annotations

import math
from collections import Counter

import pandas as pd
import pytest
import torch

from coterie.checks import InputError, TrainingError
from coterie.records import Rung, Search, Step, rungs
from coterie.seeds import generator
from coterie.study.search import Tune, choose, folds_of, settings_of
from support.plain_clients import mine
from support.tuning_studies import LOG

# The schedule.


@pytest.mark.parametrize(
    ("trials", "rounds", "factor", "expected"),
    [
        (8, 100, 3, [(8, 33), (3, 100)]),
        (27, 100, 3, [(27, 11), (9, 33), (3, 100)]),
        (9, 9, 3, [(9, 3), (3, 9)]),
        (16, 8, 2, [(16, 1), (8, 2), (4, 4), (2, 8)]),
        (16, 7, 2, [(16, 1), (8, 3), (4, 7)]),  # no rung of less than a round
        (5, 6, 2, [(5, 1), (3, 3), (2, 6)]),
        (4, 10, 3, [(4, 3), (2, 10)]),
        (3, 10, 3, [(3, 10)]),  # a single one that trains on decides nothing
        (8, 2, 3, [(8, 2)]),
        (5, 10, 1, [(5, 10)]),
        (1, 10, 3, [(1, 10)]),
    ],
)
def test_rungs_are_those_computed_by_hand(trials, rounds, factor, expected):
    assert rungs(trials, rounds, factor) == tuple(Rung(*pair) for pair in expected)


# The settings.


def test_draws_lie_in_their_range_evenly_on_its_scale():
    space = {
        "a": LOG,
        "b": {"from": -1.0, "to": 3.0, "scale": "linear"},
        "c": {"from": 1, "to": 8, "scale": "log"},
        "d": {"from": 0, "to": 4, "scale": "linear"},
        "e": ["x", "y"],
    }
    count = 1000
    drawn = pd.DataFrame(settings_of(Tune(trials=count), space, {}, seed=3))
    assert drawn["a"].between(0.01, 1).all()
    assert drawn["b"].between(-1, 3).all()
    # Half of the draws lie below the middle of the scale; 4 standard deviations.
    room = 4 * math.sqrt(count) / 2
    assert abs((drawn["a"] < 0.1).sum() - count / 2) < room
    assert abs((drawn["b"] < 1).sum() - count / 2) < room
    assert abs((drawn["c"] < 3).sum() - count / 2) < room  # log 3 / log 9
    assert abs((drawn["e"] == "x").sum() - count / 2) < room
    assert set(drawn["c"]) == set(range(1, 9))
    assert set(drawn["d"]) == set(range(5))
    share = (drawn["d"] == 4).mean()
    assert abs(share - 0.2) < 4 * math.sqrt(0.2 * 0.8 / count)
    for name in ("c", "d"):
        assert all(type(value) is int for value in drawn[name].tolist())
    assert all(value == float(f"{value:.4g}") for value in drawn["a"])


def test_all_methods_try_the_same_values_of_a_shared_option():
    space = {"lr": LOG, "lam": {"from": 1.0, "to": 2.0, "scale": "linear"}}
    one = settings_of(Tune(), {"lr": LOG}, {}, seed=0)
    two = settings_of(Tune(), space, {}, seed=0)
    assert [s["lr"] for s in one] == [s["lr"] for s in two]
    assert len({s["lr"] for s in one}) == len({s["lam"] for s in two}) == 8
    other = settings_of(Tune(), {"lr": LOG}, {}, seed=1)
    assert not {s["lr"] for s in one} & {s["lr"] for s in other}


def test_settings_differ_also_where_a_range_has_few_values():
    space = {"steps": {"from": 1, "to": 3, "scale": "linear"}}
    found = settings_of(Tune(trials=8), space, {}, seed=0)
    assert sorted(s["steps"] for s in found) == [1, 2, 3]


@pytest.mark.parametrize("search", ["random", "grid"])
def test_lists_give_all_their_combinations_where_these_are_few(search):
    space = {"lr": [0.1, 1.0], "lam": [1, 2, 3]}
    expected = [{"lr": a, "lam": b} for a in (0.1, 1.0) for b in (1, 2, 3)]
    assert list(settings_of(Tune(6, search), space, {}, seed=0)) == expected
    assert list(settings_of(Tune(9, search), space, {}, seed=0)) == expected


@pytest.mark.parametrize("search", ["random", "grid"])
def test_of_too_many_combinations_a_random_choice_is_tried(search):
    space = {"lr": [0.1, 0.2, 0.3], "lam": [1, 2, 3]}
    counts, chosen = Counter(), set()
    for seed in range(300):
        found = settings_of(Tune(4, search), space, {}, seed)
        tried = {(s["lr"], s["lam"]) for s in found}
        assert len(found) == len(tried) == 4
        counts.update(tried)
        chosen.add(tuple(sorted(tried)))
    assert len(chosen) > 50
    # Each of the nine is tried with probability 4/9; 4 standard deviations.
    assert len(counts) == 9
    room = 4 * math.sqrt(300 * 4 / 9 * 5 / 9)
    assert all(abs(count - 300 * 4 / 9) < room for count in counts.values())


def test_a_grid_may_have_more_combinations_than_memory():
    space = {name: list(range(1000)) for name in "abcdef"}
    assert len(settings_of(Tune(8, "grid"), space, {"a": 7}, seed=0)) == 8


@pytest.mark.parametrize(
    "space", [{"lr": LOG, "lam": [1, 2]}, {"lr": [0.01, 0.5], "lam": [1, 2]}]
)
def test_written_values_are_tried_first_and_only_once(space):
    for lr in (0.5, 7.0):
        found = settings_of(Tune(trials=4), space, {"lr": lr, "steps": 3}, seed=0)
        assert len(found) == 4
        assert found[0]["lr"] == lr
        assert all(s.keys() == {"lr", "lam"} for s in found)
        assert sum(s == found[0] for s in found) == 1
        if isinstance(space["lr"], dict):
            assert all(s["lr"] != lr for s in found[1:])


# The folds.


def of(federation, name, client) -> list[int]:
    return mine(federation, client, name).tolist()


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_folds_divide_training_and_validation_data_and_leave_test_data(
    classification, folds
):
    some = classification.select(torch.tensor([4, 0, 2]))
    made = folds_of(some, folds, seed=0)
    assert len(made) == folds
    for client in range(3):
        everything = of(some, "train", client) + of(some, "validation", client)
        held = [of(fold, "validation", client) for fold in made]
        assert sorted(j for part in held for j in part) == sorted(everything)
        sizes = [len(part) for part in held]
        assert max(sizes) - min(sizes) <= 1
        for fold, part in zip(made, held, strict=True):
            rest = of(fold, "train", client)
            assert sorted(rest + part) == sorted(everything)
            assert of(fold, "test", client) == of(some, "test", client)
    for fold in made:
        assert fold.clients is some.clients
        assert fold.features is some.features


def test_folds_depend_on_the_seed_alone(classification):
    first, again, other = (folds_of(classification, 2, seed) for seed in (0, 0, 1))
    assert torch.equal(first[0].train.index, again[0].train.index)
    assert not torch.equal(first[0].train.index, other[0].train.index)


def test_too_few_samples_for_the_folds_are_refused(classification):
    message = r"`tune.folds` = 7 needs at least 7 samples .* client 1 .* has 6"
    with pytest.raises(InputError, match=message):
        folds_of(classification, 7, seed=0)
    assert len(folds_of(classification, 6, seed=0)) == 6


# The choice, with scores from a table in place of training.


def from_table(table: list[list[float]], spent: list[tuple[int, int]]):
    """Training that takes scores from a table (trial, rung); NaN fails."""

    def train(search: Search, trial: int, rung: Rung) -> Step:
        spent.append((trial, rung.rounds))
        score = table[trial][search.rungs.index(rung)]
        return Step(trial, rung.rounds, 1, () if math.isnan(score) else (score,))

    return train


def new_search(trials: int, rounds: int = 9, factor: int = 3) -> Search:
    settings = tuple({"lr": float(number)} for number in range(trials))
    return Search("local", 0, 1, settings, rungs(trials, rounds, factor))


@pytest.mark.parametrize("higher", [True, False])
def test_the_best_of_each_rung_go_on_and_the_best_at_the_end_is_chosen(higher):
    sign = 1 if higher else -1
    # After 3 rounds 1, 4 and 5 are best, and 1 comes before 0 and 2 only by a tie.
    table = [[1, 9], [5, 3], [1, 9], [0, 9], [7, 1], [5, 3]]
    begin = Search("local", 0, 1, new_search(6).settings, (Rung(6, 3), Rung(3, 9)))
    spent: list[tuple[int, int]] = []
    train = from_table([[sign * value for value in row] for row in table], spent)
    end = choose(begin, train, lambda *_: None, higher=higher)
    assert spent == [*((trial, 3) for trial in range(6)), (4, 9), (1, 9), (5, 9)]
    assert end.chosen == 1  # as good as 5, and tried before
    assert end.best == {"lr": 1.0}
    fates = {step[:2]: end.status(step) for step in end.steps}
    assert [fates[trial, 3] for trial in range(6)] == [
        "dropped",
        "went on",
        "dropped",
        "dropped",
        "went on",
        "went on",
    ]
    assert [fates[trial, 9] for trial in (1, 4, 5)] == [
        "chosen",
        "finished",
        "finished",
    ]


def test_a_setting_that_fails_cannot_be_chosen_even_late():
    nan = math.nan
    begin = new_search(6)
    assert begin.rungs == (Rung(6, 3), Rung(2, 9))
    train = from_table([[nan, 1], [3, nan], [2, 0], [nan, 1], [1, 9], [1, 9]], [])
    end = choose(begin, train, lambda *_: None, higher=True)
    assert end.chosen == 2
    assert [s.trial for s in end.steps if end.status(s) == "failed"] == [0, 3, 1]


@pytest.mark.parametrize("rung", [0, 1])
def test_if_every_setting_fails_training_stops_with_a_sentence(rung):
    table = [[1.0, 1.0] for _ in range(6)]
    for row in table:
        row[rung] = math.nan
    message = r"local \(seed 0\): none of the 6 settings of \[tune.space\]"
    with pytest.raises(TrainingError, match=message):
        choose(new_search(6), from_table(table, []), lambda *_: None, higher=True)


def test_a_stopped_search_makes_only_the_steps_that_are_left():
    rng = generator("tests", "stopped")
    table = torch.rand(9, 2, generator=rng).tolist()
    spent: list[tuple[int, int]] = []
    found: list[Search] = []
    train = from_table(table, spent)
    end = choose(new_search(9), train, lambda s, _: found.append(s), higher=True)
    steps = list(spent)
    assert len(steps) == 12
    for number, stopped in enumerate(found):
        spent.clear()
        assert choose(stopped, train, lambda *_: None, higher=True) == end
        assert spent == steps[number + 1 :]
