"""Claims about studies without validation data, where nothing is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coterie as co
from coterie.algorithms import CHOOSING
from coterie.checks import InputError
from coterie.data import divide, load
from coterie.export import default_label, export_model
from coterie.report import headline, summary, write_report
from support.called import called
from support.refusals import refuses
from support.tiny_studies import TABLES


def none(**tables) -> co.Study:
    """A study without validation data."""
    split = {**TABLES["split"], "validation": 0}
    return co.study_of({**TABLES, "split": split, **tables})


def entries(*names: str) -> list[dict[str, object]]:
    return [{"name": name} for name in names]


def test_all_samples_train_or_test():
    split = {"clients": 4, "max_samples": 40}
    found = divide(load("digits"), "iid", seed=0, validation=0, test=0.2, **split)
    assert found.validation.size.tolist() == [0] * 4
    assert found.test.size.tolist() == [8] * 4
    assert found.train.size.tolist() == [32] * 4


def test_some_clients_cannot_have_validation_data_where_others_have_none():
    table = co.Table("mine", torch.zeros(8, 1), torch.zeros(8), "regression", 1)
    owner = torch.arange(8) // 4
    assert len(co.federate(table, owner, torch.tensor([0, 0, 2, 2] * 2))) == 2
    with pytest.raises(InputError, match="needs validation data, but client 1"):
        co.federate(table, owner, torch.tensor([0, 1, 2, 2, 0, 0, 2, 2]))


def test_methods_that_need_no_choice_run_and_are_compared(tmp_path):
    seen = []
    study = none(algorithm=entries("local", "fedavg"))
    result = co.run_study(study, runs=tmp_path, progress=lambda p: seen.append(p.score))
    columns = result.records.metrics.columns
    assert not [name for name in columns if name.startswith("validation")]
    assert result.table()["mean"].notna().all()
    assert set(seen) == {None}
    write_report(result.records, tmp_path / "report.html")
    assert "Choice" not in headline(result.records, result.table())
    assert default_label(result.records) == "fedavg"
    export_model(co.load(result.folder), 0, tmp_path / "export")
    card = (tmp_path / "export" / "README.md").read_text(encoding="utf-8")
    assert "chosen by validation data" not in card


def test_the_headline_says_that_nothing_was_chosen(tmp_path):
    study = none(algorithm=entries("local", "ditto", "fedavg"))
    records = co.run_study(study, runs=tmp_path).records
    said = headline(records, summary(records))["Choice"]
    assert said.startswith("Nothing was chosen, because there are no validation data")
    assert "fedavg, which is listed last" in said
    refuses("no validation data to choose by", default_label, records)


def test_watching_shows_no_scores(tmp_path):
    study = none(algorithm=entries("local"))
    folder = co.run_study(study, runs=tmp_path).folder
    _, shown, _ = called("watch", str(folder))
    assert "not finite" not in shown


@pytest.mark.parametrize("name", CHOOSING)
def test_methods_that_choose_by_validation_data_are_refused_by_name(name):
    graph = {"graph": {"edges": "ring"}} if name == "neighbours" else {}
    rule = f"`split.validation` must be above 0 for {name}, which chooses"
    refuses(rule, none, algorithm=entries("local", name), **graph)


def test_a_search_needs_validation_data_or_folds():
    space = {"trials": 2, "space": {"lr": [0.1, 0.2]}}
    refuses(r"above 0 for \[tune\] without `folds`", none, tune=space)
    assert none(tune={**space, "folds": 2}).tune is not None


def test_every_method_that_asks_for_validation_data_says_that_it_chooses():
    folder = Path(co.algorithms.__file__).parent
    asks = [p.stem for p in folder.glob("*.py") if ".validation()" in p.read_text()]
    assert {stem.partition("_")[0] for stem in asks} == set(CHOOSING)
