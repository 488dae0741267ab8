"""What a report says of all methods: rank, certainty, cost and oracles."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie import report
from coterie.records import Records
from coterie.report.headlines import best_of, details
from coterie.scores import favourite_of
from support.made_records import make_records, right_samples, with_outcomes, written

more = functools.partial(right_samples, samples=20)
RIGHT = more()


def records_with(**measured: np.ndarray) -> Records:
    records = make_records(n=4, labels=("local", *measured), weights=False)
    return with_outcomes(records, {"local": RIGHT, **measured})


def details_of(records: Records) -> dict[str, str]:
    return details(records, report.summary(records))


def test_details_say_how_sure_who_leads_and_what_it_costs() -> None:
    records = records_with(fedavg=more(1, 0, 0, 0), ditto=more(10, 10, 9, -8))
    answers = details_of(records)
    assert list(answers) == ["Rank", "How sure", "Cost"]
    assert "3 seeds and 80 test samples" in answers["How sure"]
    # 160 gradients in each of four rounds of four clients, by all algorithms alike.
    assert "ditto: as many gradients as local (2,560)" in answers["Cost"]
    cost = "128 kB sent and received, 2 times the bytes of fedavg"
    assert cost in answers["Cost"]
    assert "0.4 s of training here, local 0.4 s" in answers["Cost"]


def test_where_nothing_can_be_told_there_is_a_tie() -> None:
    answers = details_of(records_with(ditto=more(1, 0, -1, 1)))
    assert answers["Rank"].startswith("A tie: ditto leads")


def test_oracles_are_marked_and_never_best(tmp_path: Path) -> None:
    truth, found = more(9, 9, 9, 9), more(5, 6, 5, 6)
    records = replace(records_with(ditto=found, best=truth), oracles=("best",))
    table = report.summary(records)
    assert list(table["oracle"]) == [False, False, True]
    sentence, first = best_of(records, table)
    assert first == "ditto" and "is best" in sentence
    assert favourite_of(records) == "ditto"
    answers = details_of(records)
    assert answers["Oracles"].startswith(
        "best (95.0 %) knows the true clusters or optima"
    )
    page = written(records, tmp_path)
    assert "best (oracle)" in page
    row = page[page.index(">best (oracle)<") :]
    assert 'class="best"' not in row[: row.index("</tr>")]


def test_a_lead_within_its_interval_is_a_tie() -> None:
    records = records_with(fedavg=more(6, 6, 6, 6), ditto=more(6, 6, 6, 7))
    sentence, first = best_of(records, report.summary(records))
    assert first is None
    assert "a tie" in sentence.lower() and "cannot tell the two apart" in sentence


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"outcomes": {}}, "Intervals count 3 seeds only, because this run did not"),
        (
            {"outcomes": {}, "task": "binary", "score": "auc"},
            "3 seeds only, because this run did not keep the auc of each",
        ),
    ],
)
def test_what_is_not_counted_is_said(change: dict[str, object], sentence: str) -> None:
    records = records_with(ditto=more(5, 5, 5, 5))
    metrics = records.metrics.assign(test_auc=records.metrics["test_accuracy"])
    records = replace(records, metrics=metrics, **change)
    assert sentence in details_of(records)["How sure"]


def test_one_seed_says_that_seeds_are_not_counted() -> None:
    records = make_records(n=4, labels=("local", "ditto"), seeds=1, weights=False)
    measured = {"local": RIGHT[:1], "ditto": more(9, 9, 9, 9)[:1]}
    records = with_outcomes(records, measured)
    answers = details_of(records)
    assert "ignore what another seed would change" in answers["How sure"]
    bare = details_of(replace(records, outcomes={}))
    assert bare["How sure"].startswith("Unknown: there is a single seed")
