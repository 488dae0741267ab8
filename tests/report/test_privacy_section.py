"""Claims about the section on private training."""

from __future__ import annotations

import math
from html import escape

import pytest

from coterie.checks import InputError
from coterie.privacy import epsilon_of, mu_of
from coterie.report.pages import write_report
from coterie.report.privacy import epsilon_curves, epsilon_matrix, privacy_section
from coterie.report.privacy.officer import NOT_COVERED
from coterie.scores import epsilon_by_role
from coterie.scores.roles import promised_to
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from support.refusals import refuses

TABLES = {
    "name": "guarded",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 3, "batch_size": 4, "dtype": "float64", "evaluate_every": 1},
    "algorithm": [
        {"name": "local"},
        {"name": "fedavg"},
        {"name": "all_for_one", "weights": "uniform"},
    ],
}


def records(tmp_path_factory, **privacy):
    tables = {**TABLES, **({"privacy": privacy} if privacy else {})}
    return run_study(study_of(tables), runs=tmp_path_factory.mktemp("runs")).records


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    return records(tmp_path_factory, clip=0.3, epsilon=4.0, aggregation="secure")


def test_a_report_says_what_was_promised_and_to_whom(guarded, tmp_path):
    page = write_report(guarded, tmp_path / "report.html").read_text(encoding="utf-8")
    section = privacy_section(guarded)
    assert section in page
    for words in ("Epsilon at delta 1e-05", "nobody", "the server", "other clients"):
        assert words in section
    for role in ("the server", "one participant", "all others"):
        assert role in section


def test_a_number_for_each_role_is_that_of_the_noise_which_is_left(guarded):
    # Four clients of equal sizes; noise is for the server and one of them.
    mu, found = mu_of(4.0, 1e-5), epsilon_by_role(guarded)
    left = {"server": 4, "server and one participant": 3, "server and all others": 1}
    for role, count in left.items():
        expected = epsilon_of(mu * math.sqrt(3 / count), 1e-5)
        assert found.loc["fedavg", f"the {role}"] == pytest.approx(expected), role
        assert f"<td>{expected:.3g}</td>" in privacy_section(guarded)
        assert found.loc["all_for_one", f"the {role}"] == pytest.approx(4.0)
        assert found.loc["local", f"the {role}"] == 0


def test_a_promise_says_in_whose_eyes_it_holds():
    secure = {"aggregation": "secure"}
    assert promised_to({}) == "the server and all others"
    assert promised_to(secure) == "the server and one participant"
    assert promised_to({**secure, "colluders": 3}) == "the server and 3 participants"


def test_more_colluders_have_a_number_of_their_own(tmp_path_factory):
    given = {"clip": 0.3, "epsilon": 4.0, "aggregation": "secure", "colluders": 2}
    found = epsilon_by_role(records(tmp_path_factory, **given)).loc["fedavg"]
    mu = mu_of(4.0, 1e-5)
    assert found["the server and 2 participants"] == pytest.approx(4.0)
    one = epsilon_of(mu * math.sqrt(2 / 3), 1e-5)
    assert found["the server and one participant"] == pytest.approx(one)
    with pytest.raises(InputError, match="colluders` must be at most 3, got 4"):
        records(tmp_path_factory, **{**given, "colluders": 4})


def test_a_report_says_of_which_algorithms_the_server_saw_sums_alone(guarded):
    section = privacy_section(guarded)
    assert "For averages of fedavg, the server saw only sums" in section
    assert "the server, sums alone</td>" in section
    assert "other clients</td>" in section


def test_curves_of_epsilon_end_where_the_noise_was_found_for(guarded):
    figure = epsilon_curves(guarded)
    worst = {t.name: list(t.y) for t in figure.data if t.showlegend}
    assert worst["local"] == [0, 0, 0, 0]
    assert worst["fedavg"][0] == 0 and worst["fedavg"] == sorted(worst["fedavg"])
    assert worst["fedavg"][-1] == pytest.approx(4.0)


def test_the_matrix_has_a_column_for_the_server_where_there_is_one(guarded):
    assert epsilon_matrix(guarded, "fedavg").data[0].z.shape == (4, 5)
    assert epsilon_matrix(guarded, "all_for_one").data[0].z.shape == (4, 4)
    refuses("no releases of 'local'", epsilon_matrix, guarded, "local")


def test_without_privacy_there_is_no_section(tmp_path_factory):
    free = records(tmp_path_factory)
    assert privacy_section(free) == ""
    refuses("needs \\[privacy\\]", epsilon_curves, free)


def test_the_report_begins_with_epsilon_and_has_the_page_of_an_officer(tmp_path):
    tables = {
        "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 20},
        "model": {"name": "linear"},
        "run": {"rounds": 2},
        "algorithm": [{"name": "local"}, {"name": "fedavg"}],
        "privacy": {"clip": 0.5, "epsilon": 8.0},
    }
    records = run_study(study_of(tables), runs=tmp_path).records
    text = write_report(records, tmp_path / "report.html").read_text("utf-8")
    begins = text[text.index("<header>") : text.index("<nav")]
    first = begins[begins.index("<dt>") :]
    assert first.startswith("<dt>Privacy</dt><dd>Epsilon 0 (local), 8 (fedavg)")
    assert "Simulation only" in first
    assert '<a href="#privacy">Who sees what</a>' in first
    assert "The one private study on these data so far: at most 8" in first
    assert "For a data protection officer" in text and 'id="privacy"' in text
    for words in NOT_COVERED:
        assert escape(words) in text
