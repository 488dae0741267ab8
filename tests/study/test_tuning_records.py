"""What a search leaves behind: records, report and figure."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest

from coterie import report
from coterie.records import Search, load_records, rungs
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.search import Tune
from support.made_records import written
from support.run_folders import folder_of
from support.study_runs import stopped
from support.tuning_studies import TABLES, made, searches


def test_records_say_what_was_tried_and_chosen(tuned):
    table = tuned.records.trials
    read = pd.read_csv(tuned.folder / "tuning.csv")
    pd.testing.assert_frame_equal(
        read, table.astype(read.dtypes.to_dict()), check_dtype=False
    )
    for (label, seed), search in searches(tuned).items():
        mine = table[(table["algorithm"] == label) & (table["seed"] == seed)]
        assert len(mine) == len(search.steps) == 10
        assert set(mine.loc[mine["chosen"], "trial"]) == {search.chosen}
        for _, row in mine.iterrows():
            setting = search.settings[row["trial"]]
            assert {key: row[key] for key in setting} == setting
        options = tuned.chosen_options().loc[(label, seed)].dropna().to_dict()
        assert options == search.best
    assert type(tuned.chosen_options()["steps"].dropna().iloc[0]) is int
    assert list(tuned.chosen_options().columns) == ["lr", "steps"]
    again = load_records(tuned.folder).trials
    pd.testing.assert_frame_equal(again, table)


def test_the_report_says_what_was_chosen_and_from_what(tuned, tmp_path):
    text = written(tuned.records, tmp_path)
    section = text[text.index('<h2 id="chosen">') : text.index('<h2 id="made">')]
    assert "Test data did not choose anything" in section
    assert "5 settings with each seed, by random search" in section
    assert "train for 1 round, the best 3 go on to round 3, the best 2" in section
    for (label, seed), options in tuned.chosen_options().iterrows():
        for option, value in options.dropna().items():
            row = re.search(
                rf'<th scope="row">{label}</th><td>{option}</td>(.*?)</tr>', section
            )
            cells = re.findall("<td>(.*?)</td>", row[1])
            assert cells[1 + seed] == f"{value:g}"
            assert cells[-2:] == ["5", "17"]
    assert "<td>0.001 to 0.1 (log)</td>" in section
    assert "<td>1 to 3 (log)</td>" in section


def test_the_figure_shows_every_trial_where_it_ended(tuned):
    figure = report.trials(tuned.records)
    assert [trace.name for trace in figure.data] == ["local", "fedavg"]
    found = searches(tuned)
    for trace in figure.data:
        mine = [found[trace.name, seed] for seed in (0, 1)]
        ends = {}
        for search in mine:
            for step in sorted(search.steps):
                lr = search.settings[step.trial]["lr"]
                ends[lr, step.trial, search.seed] = step.score
        expected = sorted((lr, score) for (lr, *_), score in ends.items())
        assert sorted(zip(trace.x, trace.y, strict=True)) == expected
        stars = [
            x
            for x, symbol in zip(trace.x, trace.marker.symbol, strict=True)
            if symbol == "star"
        ]
        assert sorted(stars) == sorted(search.best["lr"] for search in mine)
        assert Counter(trace.marker.symbol) == {
            "star": 2,
            "circle": 2,
            "circle-open": 6,
        }
    assert figure.layout.xaxis.type == "log"
    by_steps = figure.layout.updatemenus[0].buttons[1]
    assert by_steps.args[1]["xaxis.title.text"] == "steps"
    assert list(by_steps.args[1]["xaxis.tickvals"]) == sorted(
        {x for trace in by_steps.args[0]["x"] for x in trace if x is not None}
    )
    assert list(by_steps.args[0]["x"][0]) == [None] * 10  # local did not search them


def test_values_of_other_kinds_have_an_axis_of_names(tmp_path):
    entries = [{"name": "local"}, {"name": "all_for_one"}]
    space = {"weights": ["clusters", "alone"], "lr": [0.01]}
    run = {"rounds": 2, "batch_size": 4}
    asked = made({"space": space}, algorithm=entries, run=run)
    result = run_study(asked, runs=tmp_path)
    figure = report.trials(result.records)
    texts = [b.args[1]["xaxis.ticktext"] for b in figure.layout.updatemenus[0].buttons]
    assert [set(text) for text in texts] == [{"0.01"}, {"clusters", "alone"}]
    assert set(result.chosen_options()["weights"].dropna()) <= {"clusters", "alone"}


def test_an_interrupted_search_is_reported(tmp_path):
    asked = made({"halving": 2}, run=TABLES["run"] | {"seeds": [0], "rounds": 2})
    stopped(asked, lambda p: p.label == "fedavg (tuning 3/5)", runs=tmp_path)
    records = load_records(folder_of(asked, tmp_path))
    waiting = records.trials[records.trials["algorithm"] == "fedavg"]
    assert list(waiting["status"]) == ["waiting", "waiting"]
    assert "What was chosen" in written(records, tmp_path)


DOCS = Path(__file__).parents[2] / "docs" / "studies.md"


@pytest.mark.parametrize("key", [f for f in fields(Tune) if f.name != "space"])
def test_every_key_is_described_with_its_default(key):
    shown = f'"{key.default}"' if isinstance(key.default, str) else repr(key.default)
    assert f"| `{key.name}` | `{shown}` |" in DOCS.read_text("utf-8")


def test_the_example_of_the_documentation_runs(tmp_path):
    section = DOCS.read_text("utf-8").split("## Tuning")[1]
    tables = tomllib.loads(re.search(r"```toml\n(.*?)```", section, re.DOTALL)[1])
    # "A search trains as many rounds as 4.7 runs."
    whole = rungs(tables["tune"]["trials"], 300, tables["tune"]["halving"])
    assert Search("", 0, 1, (), whole).planned_rounds == pytest.approx(
        4.7 * 300, rel=0.01
    )
    tables["run"] |= {"rounds": 3, "seeds": [1]}
    tables["tune"]["trials"] = 4
    result = run_study(study_of(tables), runs=tmp_path)
    table = result.records.trials
    assert set(table.groupby(["algorithm", "seed"])["trial"].nunique()) == {4}
    first = table[(table["algorithm"] == "local") & (table["trial"] == 0)]
    assert set(first["lr"]) == {0.3}
    finetuned = table[table["algorithm"] == "fedavg_finetune"]
    assert finetuned["lr"].astype(float).between(0.1, 3.0).all()
