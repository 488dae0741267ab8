"""What is found of records is kept where somebody says that they will not change."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from coterie.scores import final_scores, gain_of
from coterie.scores.caching import with_cache
from support.made_records import make_records


def test_answers_are_kept_by_question_and_equal_those_found_anew():
    records = make_records()
    same = with_cache(records)
    for label in ("fedavg", "ditto"):
        once = final_scores(same, label)
        assert final_scores(same, label) is once
        assert final_scores(with_cache(same), label) is once
        pd.testing.assert_frame_equal(once, final_scores(records, label))
    over = gain_of(same, "ditto", over="fedavg")
    assert over.mean != gain_of(same, "ditto").mean
    assert over.mean == gain_of(records, "ditto", over="fedavg").mean


def test_other_records_are_asked_anew():
    same = with_cache(make_records())
    before = final_scores(same, "ditto")
    better = same.metrics.assign(test_accuracy=same.metrics["test_accuracy"] + 1)
    after = final_scores(replace(same, metrics=better), "ditto")
    pd.testing.assert_frame_equal(after, before + 1)


def test_records_that_may_change_keep_nothing():
    records = make_records()
    before = final_scores(records, "ditto")
    records.metrics["test_accuracy"] += 1
    pd.testing.assert_frame_equal(final_scores(records, "ditto"), before + 1)
