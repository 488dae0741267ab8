"""Claims about the section on private training."""

from __future__ import annotations

import pytest

from coterie.checks import InputError
from coterie.report.pages import write_report
from coterie.report.privacy import privacy_section, spending, told
from coterie.study.config import study_of
from coterie.study.experiment import run_study

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


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    return records(tmp_path_factory)


def test_a_report_says_what_was_promised_and_to_whom(guarded, tmp_path):
    page = write_report(guarded, tmp_path / "report.html").read_text(encoding="utf-8")
    section = privacy_section(guarded)
    assert section in page
    for words in ("Epsilon at delta 1e-05", "nobody", "the server", "other clients"):
        assert words in section
    assert "if rows were seen" in section


def test_a_report_says_of_which_algorithms_the_server_saw_sums_alone(guarded):
    section = privacy_section(guarded)
    assert "Of averages of fedavg the server saw sums alone" in section
    assert "the server, sums alone</td>" in section
    assert "other clients</td>" in section


def test_curves_of_epsilon_end_where_the_noise_was_found_for(guarded):
    figure = spending(guarded)
    worst = {t.name: list(t.y) for t in figure.data if t.showlegend}
    assert worst["local"] == [0, 0, 0, 0]
    assert worst["fedavg"][0] == 0 and worst["fedavg"] == sorted(worst["fedavg"])
    assert worst["fedavg"][-1] == pytest.approx(4.0)


def test_the_matrix_has_a_column_for_the_server_where_there_is_one(guarded):
    assert told(guarded, "fedavg").data[0].z.shape == (4, 5)
    assert told(guarded, "all_for_one").data[0].z.shape == (4, 4)
    with pytest.raises(InputError, match="no releases of 'local'"):
        told(guarded, "local")


def test_without_privacy_there_is_no_section(free):
    assert privacy_section(free) == ""
    with pytest.raises(InputError, match="needs \\[privacy\\]"):
        spending(free)
