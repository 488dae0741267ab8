"""The first screen: a verdict in everyday words, one picture, groups and cost."""

from __future__ import annotations

import functools
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.records import GroupLabels, Records, Snapshots
from coterie.records.cells import CONSTANT, LINEAR, TREES
from coterie.report.opening.groups import groups_of, groups_of_labels, groups_text
from coterie.report.opening.notices import (
    small_text,
    undertrained_text,
    unset_steps_text,
    weak_local_text,
)
from coterie.report.opening.nouns import amounts_of, client_nouns
from coterie.report.opening.pictures import (
    axis_limits,
    client_gains,
    clients_with_cut_intervals,
    gain_table,
)
from coterie.report.opening.verdicts import headline, notices_of, verdict_of
from coterie.scores.finals import score_of, unit_of
from coterie.types import ALONE, EVERYBODY
from support.made_records import (
    make_records,
    right_samples,
    with_baselines,
    with_outcomes,
    written,
)

SAMPLES = 40
more = functools.partial(right_samples, samples=SAMPLES)
HALF = more()


def records_with(n: int = 4, **measured: np.ndarray) -> Records:
    """Records of four hospitals, or of fewer, and of these methods."""
    records = make_records(n=n, labels=("local", *measured), weights=False)
    study = records.study | {"data": {"name": "file", "client": "hospital"}}
    clients = records.clients.assign(test=SAMPLES)
    names = ("Bern", "Chur", "Genf", "Thun")[:n]
    records = replace(records, study=study, clients=clients, names=names)
    shares = {"local": HALF, **measured}
    return with_outcomes(records, {name: s[:, :n] for name, s in shares.items()})


def lead(records: Records) -> str:
    return verdict_of(records, report.summary(records)).lead


def rest(records: Records) -> str:
    return verdict_of(records, report.summary(records)).more


def test_a_verdict_says_that_all_clients_gain():
    records = records_with(ditto=more(18, 18, 18, 18))
    assert lead(records) == (
        "With ditto, all four hospitals get a better model by learning together. We "
        "are sure about all four."
    )
    assert rest(records).startswith(
        "On average, the test accuracy is 95.0 % together and 50.0 % alone, which is "
        "45.0 points better (95 % interval: between "
    )
    assert rest(records).endswith("We are sure of this average.")


def test_a_verdict_about_two_clients_says_both_or_neither():
    gains, losses = (records_with(2, ditto=more(k, k)) for k in (18, -18))
    assert lead(gains) == (
        "With ditto, both hospitals get a better model by learning together. We are "
        "sure about both."
    )
    assert lead(losses).startswith(
        "With ditto, neither of the two hospitals gets a better model"
    )
    weights = {
        ("ditto", s): Snapshots(np.array([4]), in_groups("a", "a")[None])
        for s in range(3)
    }
    text = groups_text(replace(gains, weights=weights), "ditto")
    assert text == "Both hospitals learn together."


def test_a_verdict_about_one_client_uses_the_singular():
    records = make_records(n=1, labels=("local", "ditto"), weights=False)
    half, more_of = HALF[:, :1], more(18)[:, :1]
    records = with_outcomes(records, {"local": half, "ditto": more_of})
    assert lead(records) == (
        "With ditto, the client gets a better model by learning together. We are sure "
        "about it."
    )
    records = with_outcomes(records, {"local": half, "ditto": more(-1)[:, :1]})
    assert lead(records) == (
        "With ditto, the client gets a worse model by learning together. We are not "
        "sure about it."
    )
    records = with_outcomes(records, {"local": half, "ditto": half})
    assert lead(records) == (
        "With ditto, the client does not get a better model by learning together."
    )


def test_the_only_client_with_few_test_samples_is_not_compared_with_an_average():
    records = make_records(n=1, labels=("local", "ditto"), weights=False)
    few = replace(records, clients=records.clients.assign(test=6))
    assert small_text(few) == (
        "The client has fewer than 20 test samples: that is too few."
    )


def test_better_is_as_measured_and_sure_is_beyond_the_interval():
    records = records_with(ditto=more(18, 18, 1, 0))
    assert lead(records) == (
        "With ditto, three of four hospitals get a better model by learning together. "
        "None gets a worse one. For one nothing changes. We are sure about two."
    )


def test_a_verdict_names_the_client_that_loses():
    records = records_with(ditto=more(18, 18, 1, -15))
    assert lead(records) == (
        "With ditto, three of four hospitals get a better model by learning together. "
        "One gets a worse one (Thun). We are sure that two get a better one, and that "
        "Thun gets a worse one."
    )


def test_a_verdict_says_that_no_client_gains():
    records = records_with(ditto=more(-18, -18, -18, -18))
    assert lead(records).startswith(
        "With ditto, none of the four hospitals gets a better model by learning "
        "together. Four get a worse one (Bern, Chur, Genf and Thun). We are sure that "
    )
    assert "which is 45.0 points worse (95 % interval: between " in rest(records)


def test_a_verdict_says_where_no_gain_is_sure():
    records = records_with(ditto=more(1, 0, -1, 1))
    assert lead(records).endswith("We are not sure about any hospital.")
    assert rest(records).endswith("That may be chance.")


def test_the_average_may_be_sure_where_no_client_is():
    records = records_with(ditto=more(3, 3, 3, 3))
    assert lead(records).endswith(
        "We are sure of the average, but not about any single hospital."
    )


def test_lower_is_better_for_an_error_in_kilograms():
    rng = np.random.default_rng(0)
    noise = 100 * rng.normal(size=(3, 4, SAMPLES))
    records = make_records(n=4, labels=("local", "ditto"), weights=False)
    data = {"name": "file", "client": "factory", "target": "yield_kg"}
    records = replace(
        records,
        task="regression",
        score="mae",
        higher_is_better=False,
        study=records.study | {"data": data},
        metrics=records.metrics.assign(test_mae=1.0),
    )
    measured = {"local": 8000 + noise, "ditto": 4800 + noise}
    records = with_outcomes(records, measured)
    assert lead(records).startswith("With ditto, all four factories get a better model")
    mean = noise.mean()
    assert (
        f"the test absolute error is {4800 + mean:,.0f} kg together and "
        f"{8000 + mean:,.0f} kg alone, which is 3,200 kg better" in rest(records)
    )
    figure = client_gains(records, "ditto")
    assert figure.layout.xaxis.title.text == "better → (kg)"
    assert set(figure.data[0].text) == {"+3,200 kg"}


def test_a_failed_training_is_told_and_compares_nothing():
    records = records_with(ditto=more(9, 9, 9, 9))
    last = records.metrics["round"] == records.metrics["round"].max()
    worse = last & (records.metrics["algorithm"] == "ditto")
    losses = records.metrics["train_loss"].mask(worse, 9.0)
    records = replace(records, metrics=records.metrics.assign(train_loss=losses))
    assert lead(records) == (
        "We cannot compare anything with training alone: all other training failed."
    )
    assert "Training of ditto failed" in rest(records)


def test_without_anything_to_compare_the_verdict_says_so():
    records = make_records(labels=("fedavg",), weights=False)
    assert lead(records).startswith("This study does not train `local`")
    alone = make_records(labels=("local",), weights=False)
    assert lead(alone).startswith("Only training alone was run")
    assert "The best mean test accuracy is" in rest(alone)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (19, "does better than every method here"),
        (13, "does at least as well as every method here"),
    ],
)
def test_scikit_learn_alone_comes_first_where_it_is_better(count: int, words: str):
    records = records_with(ditto=more(12, 12, 12, 12))
    beside = {CONSTANT: HALF, LINEAR: more(*[count] * 4), TREES: more(5, 5, 5, 5)}
    records = with_baselines(records, beside)
    said = lead(records)
    mean = 100 * (0.5 + count / SAMPLES)
    assert said.startswith(
        f"Plain scikit-learn {words}: logistic regression, trained at each hospital "
        f"alone, has a mean test accuracy of {mean:.1f} %, and ditto, the best method, "
        "of 80.0 %."
    )
    assert ("may be chance" in said) == (count == 13)
    assert "compares with `local`" in rest(records)


def test_a_weak_local_is_noticed_where_scikit_learn_alone_is_surely_better():
    records = records_with(ditto=more(19, 19, 19, 19))
    assert weak_local_text(with_baselines(records, {LINEAR: more(1, 0, 0, 0)})) == ""
    text = weak_local_text(with_baselines(records, {LINEAR: more(15, 15, 15, 15)}))
    assert text.startswith(
        "Training alone can do better than `local` does: scikit-learn's logistic "
        "regression has a mean test accuracy of 87.5 %, and `local` has 50.0 %."
    )


def test_scikit_learn_is_not_named_first_where_a_method_is_better():
    records = with_baselines(records_with(ditto=more(12, 12, 12, 12)), {LINEAR: HALF})
    assert lead(records).startswith("With ditto, all four hospitals")


def test_a_method_that_is_no_better_than_a_constant_helps_nobody():
    records = records_with(ditto=more(8, 8, 8, 8))
    records = with_baselines(records, {CONSTANT: more(9, 9, 9, 9)})
    assert lead(records).startswith("A constant prediction")
    assert "helps nobody yet" in lead(records)
    assert "get a better model" not in " ".join(
        verdict_of(records, report.summary(records))
    )


def test_baselines_are_never_best_or_listed_as_methods(tmp_path: Path):
    records = records_with(ditto=more(8, 8, 8, 8))
    records = with_baselines(records, {CONSTANT: HALF, TREES: more(19, 19, 19, 19)})
    assert list(report.summary(records).index) == ["local", "ditto"]
    page = unescape(written(records, tmp_path))
    result = page[page.index('id="summary"') : page.index('id="gains"')]
    assert result.index(">ditto<") < result.index(">Baselines<")
    assert result.index(">Baselines<") < result.index(">trees alone<")
    row = result[result.index(">trees alone<") :]
    assert 'class="best"' not in row[: row.index("</tr>")]
    assert "<td>+47.5</td>" in row[: row.index("</tr>")]  # over local


def test_a_baseline_that_is_named_as_a_method_is_left_out():
    records = records_with(constant=more(8, 8, 8, 8))
    records = with_baselines(records, {CONSTANT: HALF})
    assert lead(records).startswith("With constant, all four hospitals")


def test_the_first_screen_has_four_parts_in_order(tmp_path: Path):
    records = records_with(ditto=more(18, 18, 1, -15))
    snapshots = Snapshots(np.array([4]), np.kron(np.eye(2), np.full((2, 2), 0.5))[None])
    weights = {("ditto", seed): snapshots for seed in range(3)}
    records = replace(records, weights=weights)
    page = unescape(written(records, tmp_path))
    groups = "Bern and Chur learn together; Genf and Thun learn together."
    parts = [lead(records), 'id="verdict-figure"', groups]
    parts += ["The hospitals sent and received 64 kB in all."]
    parts += ['<nav aria-label="Sections">', "<dt>Data</dt>", "<dt>Versions</dt>"]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    answers = headline(records, report.summary(records))
    assert list(answers) == ["Verdict", "Groups", "Cost"]
    assert answers["Verdict"].startswith(lead(records))
    assert answers["Groups"] == groups


def test_the_terminal_prints_the_verdict_of_the_page(tmp_path, capsys):
    from coterie.cli.tables import print_headline

    records = records_with(ditto=more(18, 18, 18, 18))
    print_headline(headline(records, report.summary(records)))
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Verdict: {lead(records)}" in printed


@pytest.mark.parametrize(
    ("rows", "together", "own", "alone"),
    [
        (["110", "110", "001"], [[0, 1]], [], [2]),
        (["111", "111", "111"], [[0, 1, 2]], [], []),
        (["100", "010", "001"], [], [], [0, 1, 2]),
        (["111", "111", "001"], [[0, 1]], [2], []),  # whom others still use
    ],
)
def test_groups_are_those_who_use_the_same(rows, together, own, alone):
    used = np.array([[int(c) for c in row] for row in rows], dtype=bool)
    np.fill_diagonal(used, False)
    assert groups_of(used) == (together, own, alone)


def test_chains_are_no_groups():
    used = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool)
    assert groups_of(used) is None


@pytest.mark.parametrize(
    ("member", "uses", "together", "own", "alone"),
    [
        ([0, 0, 1, ALONE], [0, 0, 1, ALONE], [[0, 1]], [], [2, 3]),
        ([0, 0, 0, 3], [0, 0, ALONE, ALONE], [[0, 1]], [2], [3]),
        ([0, 0, 1, 1], [ALONE] * 4, [], [], [0, 1, 2, 3]),
        ([0, 0, 1, 1], [EVERYBODY] * 3 + [ALONE], [[0, 1, 2]], [3], []),
        ([0, 1, 1, 1], [0, 1, 1, 1], [[1, 2, 3]], [], [0]),
    ],
)
def test_groups_of_labels_are_those_of_their_matrix(member, uses, together, own, alone):
    member, uses = np.array(member), np.array(uses)
    assert groups_of_labels(member, uses) == (together, own, alone)
    labels = GroupLabels(np.array([1]), member[None], uses[None], np.ones(4))
    used = labels.weights(0) > 0
    np.fill_diagonal(used, False)
    assert groups_of(used) == (together, own, alone)


def test_groups_of_many_clients_are_counted_by_their_labels():
    records = make_records(n=300, labels=("local", "ditto"), weights=False, rounds=1)
    member = np.arange(300) % 3
    uses = np.where(np.arange(300) < 6, ALONE, member)
    labels = GroupLabels(np.array([1]), member[None], uses[None], np.ones(300))

    def text(**other: GroupLabels) -> str:
        found = {("ditto", seed): labels for seed in range(2)}
        found |= {("ditto", 2): other.get("last", labels)}
        return groups_text(replace(records, groups=found), "ditto")

    said = (
        "Three groups of 98 clients each learn together; six use models of their own."
    )
    assert text() == said
    # Names of groups mean nothing, but members do.
    renamed = labels._replace(member=2 - labels.member)
    renamed = renamed._replace(uses=np.where(uses == ALONE, ALONE, 2 - uses)[None])
    assert text(last=renamed) == said
    together = labels._replace(member=0 * labels.member, uses=0 * labels.uses)
    assert text(last=together) == f"{said} That is with seed 0."


def in_groups(*members: str) -> np.ndarray:
    """Weights of clients that are in the same group where their letters are."""
    same = np.array([[a == b for b in members] for a in members])
    return same / same.sum(1, keepdims=True)


def test_groups_are_told_by_name_and_differences_between_seeds_too():
    records = records_with(ditto=more(9, 9, 9, 9))

    def with_weights(*matrices: np.ndarray) -> Records:
        found = {
            ("ditto", seed): Snapshots(np.array([4]), matrix[None])
            for seed, matrix in enumerate(matrices)
        }
        return replace(records, weights=found)

    same = with_weights(*[in_groups("a", "b", "a", "a")] * 3)
    text = "Bern, Genf and Thun learn together; Chur learns alone."
    assert groups_text(same, "ditto") == text
    most = with_weights(
        *[in_groups("a", "b", "a", "a")] * 2, in_groups("a", "b", "a", "b")
    )
    assert groups_text(most, "ditto") == (
        "Mostly, Bern, Genf and Thun learn together; Chur learns alone; partners "
        "differ somewhat between seeds."
    )
    everybody = with_weights(*[in_groups("a", "a", "a", "a")] * 3)
    assert groups_text(everybody, "ditto") == "All four hospitals learn together."
    assert groups_text(records, "ditto") == ""


def test_clients_are_called_as_their_column_is():
    def nouns(column: str) -> tuple[str, str]:
        records = records_with(ditto=HALF)
        data = {"name": "file", "client": column}
        return client_nouns(replace(records, study=records.study | {"data": data}))

    assert nouns("hospital") == ("hospital", "hospitals")
    assert nouns("Factory_ID") == ("factory", "factories")
    assert nouns("sites") == ("site", "sites")
    for column in ("id", "x3", "name", ""):
        assert nouns(column) == ("client", "clients")


@pytest.mark.parametrize(
    ("target", "unit"),
    [
        ("weight_kg", "kg"),
        ("Weight (kg)", "kg"),
        ("price [EUR]", "EUR"),
        ("price_eur", "EUR"),
        ("kg", ""),
        ("outcome", ""),
        ("growth_fast", ""),
    ],
)
def test_a_unit_is_known_where_the_target_says_it(target: str, unit: str):
    records = records_with(ditto=HALF)
    data = {"name": "file", "target": target}
    other = {"task": "regression", "score": "rmse", "higher_is_better": False}
    metrics = records.metrics.assign(test_rmse=1.0)
    records = replace(
        records, study=records.study | {"data": data}, metrics=metrics, **other
    )
    assert unit_of(records) == unit
    assert score_of(records).axis == f"test rmse ({unit})".removesuffix(" ()")
    assert amounts_of(records).show_gain(3200).split() == ["+3,200", *unit.split()]


def test_few_test_samples_are_noticed_and_long_intervals_cut():
    records = records_with(ditto=more(18, 18, 18, 18))
    assert small_text(records) == ""
    few = records.clients["test"].where(records.clients["client"] != 3, 6)
    some = replace(records, clients=records.clients.assign(test=few))
    assert small_text(some) == (
        "Thun (6) has fewer than 20 test samples: that is too few to judge this "
        "hospital by itself."
    )
    every = replace(records, clients=records.clients.assign(test=6))
    assert small_text(every).startswith("Every hospital has fewer than 20 test samples")
    table = gain_table(some, "ditto")
    table.loc[3, ["low", "high"]] = [-90.0, 180.0]
    low, high = axis_limits(table)
    assert low > -20 and high < 100
    assert clients_with_cut_intervals(records, "ditto") == []


def test_a_picture_ends_beyond_every_point_so_that_its_arrow_is_seen():
    table = pd.DataFrame(
        {
            "mean": [1.0, 0.5, 16.0],
            "low": [-1.0, -1.5, -40.0],
            "high": [3.0, 2.5, 70.0],
            "test": [100, 100, 6],
        }
    )
    low, high = axis_limits(table)
    assert low == -1.5 and 16.0 < high < 17.0


def test_training_that_still_improves_is_noticed():
    records = make_records(labels=("local", "ditto"), weights=False, rounds=20)
    t = records.metrics["round"]
    falls = replace(records, metrics=records.metrics.assign(validation_loss=20.0 - t))
    ends = replace(records, metrics=records.metrics.assign(validation_loss=0.5**t))
    rises = (t - 15.0) ** 2
    turns = replace(records, metrics=records.metrics.assign(validation_loss=rises))
    assert undertrained_text(falls).startswith(
        "Training ended while local and ditto were still improving"
    )
    assert undertrained_text(ends) == undertrained_text(turns) == ""


@pytest.mark.parametrize("n", [4, 30, 60, 210])
def test_the_picture_is_there_for_few_and_many_clients(n: int):
    records = make_records(n=n, labels=("local", "ditto"), weights=False)
    figure = client_gains(records, "ditto")
    drawn = sum(
        len(trace.y if trace.y is not None else trace.x)
        for trace in figure.data
        if trace.showlegend is not False or trace.type == "histogram"
    )
    assert drawn == (n if n <= 200 else len(figure.data[0].x))


def test_a_step_size_that_nobody_gave_is_told_where_none_is_found():
    entries = [
        {"name": "local", "lr": 0.3},
        {"name": "fedavg", "label": "average"},
        {"name": "coteries", "tune": {"lr": [0.1]}},
        {"name": "spag"},  # which has another default
    ]
    assert unset_steps_text({"algorithm": entries}) == ""
    private = unset_steps_text({"algorithm": entries, "privacy": {}})
    assert private == (
        "The study does not set `lr` of average, so the usual 0.1 is used. With "
        "[privacy], `lr` is not found automatically, because finding it would leak "
        "data that epsilon does not count. Set an `lr` that works on public data."
    )
    timed = unset_steps_text({"algorithm": entries, "time": {}})
    assert timed.endswith("Set `lr`, or search it with [tune].")
    given = [{**entry, "lr": 0.1} for entry in entries]
    assert unset_steps_text({"algorithm": given, "privacy": {}}) == ""
    records = records_with(ditto=more(9, 9, 9, 9))
    study = records.study | {"algorithm": entries[1:2], "privacy": {}}
    assert private in notices_of(replace(records, study=study))
