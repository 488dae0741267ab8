"""Claims about `[model] personal`: parameters that stay with their client."""

from __future__ import annotations

import pytest
import torch

from coterie.models import columns
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.setup import prepare
from support.study_runs import refused
from support.tiny_studies import TABLES


def personal(patterns, *methods, **tables):
    model = {**TABLES["model"], "personal": patterns}
    return {**TABLES, "model": model, "algorithm": list(methods), **tables}


FEDAVG = {"name": "fedavg", "lr": 0.3}


def test_personal_columns_differ_between_clients_and_are_not_sent(tmp_path):
    study = study_of(personal(["head"], FEDAVG))
    result = run_study(study, runs=tmp_path)
    home = columns(prepare(study, 0).module, ["head"])
    models = result.models()
    shared = models[:, ~home]
    assert torch.equal(shared, shared[:1].expand_as(shared))
    assert len(models[:, home].unique(dim=0)) == len(models)
    values = int((~home).sum()) * 2 * len(models) * TABLES["run"]["rounds"]
    sent = result.records.rounds["bytes"].max()
    assert sent == values * 4  # up and down, in single precision


def test_a_study_without_patterns_is_as_one_without_the_option(tmp_path):
    empty = run_study(study_of(personal([], FEDAVG)), runs=tmp_path / "empty")
    without = run_study(
        study_of({**TABLES, "algorithm": [FEDAVG]}), runs=tmp_path / "without"
    )
    assert torch.equal(empty.models(), without.models())


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["hed"], r"`model.personal` \['hed'\]: no module .* 'hed'.*mean .head"),
        (["*"], "nothing would be shared"),
        ("head", "`model.personal` must be a list of names of modules, got 'head'"),
        ([1], r"must be a list of names of modules, got \[1\]"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(tmp_path, patterns, message):
    refused(personal(patterns, FEDAVG), tmp_path, message)


def test_newcomers_who_would_have_no_parameters_of_their_own_are_refused(tmp_path):
    run = {**TABLES["run"], "newcomers": 1}
    message = r"`run.newcomers` must be 0 .* got 1"
    refused(personal(["head"], FEDAVG, run=run), tmp_path, message)


def test_what_reacts_to_answers_in_time_refuses_it(tmp_path):
    study = personal(["head"], {"name": "ditto", "waits": False}, time={"period": 1.0})
    refused(study, tmp_path, r"`model.personal` needs rounds, but ditto")
