"""Claims about declarations: a dry run verifies what a method says that it releases."""

from __future__ import annotations

import pytest
import torch

import coterie as co
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError
from coterie.conformance.cases import ACTIVE
from coterie.conformance.suite import CHECKS, Finding, check_algorithm
from coterie.privacy.mechanisms import plan_calls
from coterie.privacy.mechanisms.dry_run import (
    Refusal,
    UndeclaredRelease,
    declaration,
    verify_releases,
)
from coterie.types import Releases
from support.private_runs import EVERYBODY, method, one_start, seen

OPEN: set[str] = set()
"""Methods without a declaration: the dry run alone says what they release."""

IN_ROUNDS = [name for name in ALGORITHMS if "rounds" in method(name).faces]
DECLARED = [name for name in IN_ROUNDS if name not in OPEN]
BOTH = [EVERYBODY, ACTIVE] * 3
"""Rounds with everybody, and with an odd number of clients."""


def found(algorithm) -> Releases:
    """What the dry run finds, whatever the method declares."""
    columns, undeclared = one_start().shape[1], algorithm._replace(releases=None)
    try:
        seen = plan_calls(undeclared, BOTH, seed=0, label="it", columns=columns)
    except Refusal:
        return Releases(unbounded=True)
    return seen.releases


@pytest.mark.parametrize("name", sorted({*DECLARED} - {"fedfomo"}))
def test_every_method_of_the_library_declares_exactly_what_it_releases(name):
    algorithm = method(name)
    assert algorithm.releases == found(algorithm)


def test_an_odd_number_of_clients_may_need_one_more_matching_for_all_pairs():
    """Five clients meet in five matchings, although each has four partners."""
    five = EVERYBODY.index_fill(0, torch.tensor([0]), 0)
    algorithm = method("fedfomo", models=4)
    plan = plan_calls(algorithm, [five], seed=0, label="fedfomo")
    assert plan.releases == algorithm.releases == Releases(mix=5)
    assert found(algorithm) == Releases(mix=4)  # six clients, and three


def test_methods_without_a_declaration_are_those_that_are_named():
    assert {name for name in IN_ROUNDS if method(name).releases is None} == OPEN


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adaptive_all_for_one", {"steps": 3}),
        ("all_for_all", {"steps": 3}),
        ("all_for_one", {"steps": 3}),
        ("all_for_one", {"momentum": 0.5}),
        ("apfl", {"adaptive": True}),
        ("cobo", {"steps": 2}),
        ("decentralised_sgd", {"exchanges": 3, "accelerated": True}),
        ("ditto", {"steps": 3, "momentum": 0.5}),
        ("extra", {"form": "d2"}),
        ("ifca", {"clusters": 3}),
        ("time_adaptive_all_for_all", {"steps": 3}),
        ("wga_bc", {"steps": 3}),
    ],
)
def test_declarations_hold_for_other_options_too(name, options):
    algorithm = method(name, **options)
    assert algorithm.releases == found(algorithm)


def test_meetings_beyond_the_number_of_clients_release_no_more_than_is_declared():
    algorithm = method("cobo", meetings=9)
    assert found(algorithm).mix < algorithm.releases.mix
    assert plan_calls(algorithm, BOTH, seed=0, label="cobo").releases == found(
        algorithm
    )


LIES = [
    ("fedavg", Releases(), "declares Releases(), but the dry run found "),
    ("aruba", Releases(average=2), "declares Releases(average=2), but the dry run "),
    ("gradient_tracking", Releases(average=2), "found Releases(mix=2)."),
    ("ifca", Releases(average=1), "found Releases(average=1, losses=True)."),
    ("wga_bc", Releases(blended=1), "found Releases(blended=2)."),
    ("fedavg", Releases(average=1, unbounded=True), "found Releases(average=1)."),
]


@pytest.mark.parametrize(("name", "lie", "message"), LIES)
def test_a_method_whose_declaration_lies_is_refused_by_name(name, lie, message):
    lying = method(name)._replace(releases=lie)
    with pytest.raises(UndeclaredRelease) as refused:
        seen(lying, label=name)
    assert str(refused.value).startswith(f"{name} cannot be trained privately: it ")
    assert message in str(refused.value)


def test_a_declaration_changes_nothing_of_what_is_foreseen():
    algorithm = method("aruba")
    one, other = seen(algorithm), seen(algorithm._replace(releases=None))
    assert [[c[:4] for c in calls] for calls in one.rounds] == [
        [c[:4] for c in calls] for calls in other.rounds
    ]
    assert (one.slots, one.verbs, one.sums) == (other.slots, other.verbs, other.sums)


def test_verbs_of_gradients_count_also_where_models_tell_nothing_new():
    assert seen(method("all_for_one")).verbs == {"blended"}
    assert seen(method("adaptive_all_for_one")).verbs == {"blended", "compare"}


# Studies, with both units.


def declaring(releases: Releases | None):
    """FedAvg that declares this."""

    def average(sizes, *, lr=0.1):
        return ALGORITHMS["fedavg"](sizes, lr=lr)._replace(releases=releases)

    return average


def private_study(name: str, unit: str) -> co.Study:
    return co.study_of(
        {
            "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 30},
            "model": {"name": "linear"},
            "run": {"rounds": 2},
            "algorithm": [{"name": name, "lr": 0.05}],
            "privacy": {"clip": 0.5, "epsilon": 8.0, "unit": unit},
        }
    )


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_private_study_refuses_a_method_that_lies(monkeypatch, unit):
    monkeypatch.setitem(ALGORITHMS, "lying_average", declaring(Releases()))
    with pytest.raises(InputError, match=r"lying_average .* Releases\(\), but"):
        co.run_study(private_study("lying_average", unit))


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_method_without_a_declaration_has_the_same_epsilons(monkeypatch, unit):
    monkeypatch.setitem(ALGORITHMS, "open_average", declaring(None))
    one, other = (
        co.run_study(private_study(name, unit)).records.metrics["epsilon"].tolist()
        for name in ("fedavg", "open_average")
    )
    assert one == other and max(one) > 1


def test_for_single_samples_what_nothing_bounds_may_leave_if_it_is_declared():
    columns = one_start().shape[1]
    rest = {"seed": 0, "label": "it", "columns": columns}
    algorithm = method("nuclear_norm")
    verify_releases(algorithm, BOTH, **rest)
    with pytest.raises(UndeclaredRelease, match=r"found Releases\(unbounded=True\)"):
        verify_releases(algorithm._replace(releases=Releases()), BOTH, **rest)


def test_a_method_that_runs_on_its_own_models_alone_cannot_be_verified_and_goes_on():
    def stubborn(x, oracle):
        raise ValueError("there must be 5 parameters.")

    algorithm = method("fedavg")._replace(init=stubborn, releases=Releases())
    verify_releases(algorithm, BOTH, seed=0, label="it")


# `coterie check`.


def test_a_check_says_what_to_declare():
    (finding,) = [f for f in check_algorithm(declaring(None)) if f.check == "releases"]
    assert finding.outcome == "skipped"
    assert "found `releases=Releases(average=1)`: write it" in finding.message


def finding_of(releases: Releases) -> Finding:
    skip = [name for name in CHECKS if name != "releases"]
    findings = check_algorithm(declaring(releases), skip=skip)
    (found,) = [finding for finding in findings if finding.check not in skip]
    return found


def test_a_check_fails_where_more_or_other_things_are_released_than_declared():
    assert finding_of(Releases(average=1)).outcome == "passed"
    assert finding_of(Releases(average=2)).outcome == "passed"  # it is at most that
    more = finding_of(Releases())
    assert more.outcome == "failed" and "found Releases(average=1)" in more.message
    never = finding_of(Releases(average=1, losses=True))
    assert never.outcome == "failed" and "`losses` is never" in never.message


def test_declarations_are_written_as_in_a_file():
    assert declaration(Releases()) == "Releases()"
    both = Releases(mix=3, unbounded=True)
    assert declaration(both) == "Releases(mix=3, unbounded=True)"
