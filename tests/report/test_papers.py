"""Claims about tables and figures for a paper."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coterie.checks import InputError
from coterie.report.paper import as_frame, as_latex, as_markdown, paper_columns
from coterie.report.paper.tables import caption, cell_of, latex_text
from support.made_records import make_records, make_timed
from support.seed_records import records_of_seeds

# With three seeds, half an interval is 4.302653 / sqrt(3) = 2.484138 deviations: 0.02
# gives 5.0 points, and sqrt(7 / 30000) gives 3.8.
RECORDS = records_of_seeds(
    local=[0.60, 0.60, 0.60],
    fedavg=[0.70, 0.72, 0.74],
    ditto=[0.74, 0.70, 0.72],
    **{"a_b & 50%": [0.69, 0.72, 0.71]},
)
CAPTION = (
    "Test accuracy (%): means over clients and seeds, ± half the width of the 95 % "
    "interval. Round 4, 3 seeds. Higher is better. Some intervals count seeds only, "
    "not test samples. Bold: the best mean. †: not distinguishable from the best, "
    "because the 95 % interval of the paired difference contains 0."
)
LATEX = r"""% Needs \usepackage{booktabs}.
\begin{table}
  \centering
  \caption{Test accuracy (\%): means over clients and seeds, $\pm$ half the width of the 95\,\% interval. Round 4, 3 seeds. Higher is better. Some intervals count seeds only, not test samples. Bold: the best mean. $^{\dagger}$: not distinguishable from the best, because the 95\,\% interval of the paired difference contains 0.}
  \label{tab:digits-iid}
  \begin{tabular}{lr}
    \toprule
    Method & Test accuracy (\%) \\
    \midrule
    local & 60.0 $\pm$ 0.0 \\
    fedavg & \textbf{72.0} $\pm$ 5.0 \\
    ditto & \textbf{72.0} $\pm$ 5.0 \\
    a\_b \& 50\% & 70.7 $\pm$ 3.8\rlap{$^{\dagger}$} \\
    \bottomrule
  \end{tabular}
\end{table}
"""  # noqa: E501
MARKDOWN = rf"""| Method | Test accuracy (%) |
| --- | ---: |
| local | 60.0 ± 0.0 |
| fedavg | **72.0** ± 5.0 |
| ditto | **72.0** ± 5.0 |
| a\_b & 50% | 70.7 ± 3.8 † |

{CAPTION}
"""


def test_latex_has_means_intervals_ties_in_bold_and_daggers():
    assert as_latex(paper_columns({"digits": RECORDS}), "Digits, iid") == LATEX


def test_markdown_says_the_same():
    columns = paper_columns({"digits": RECORDS})
    assert caption(columns) == CAPTION
    assert as_markdown(columns) == MARKDOWN


def test_runs_are_columns_and_what_one_lacks_is_a_dash():
    single = records_of_seeds(local=[0.5], other=[0.25])
    lines = as_latex(paper_columns({"A": RECORDS, "B_1": single})).splitlines()
    assert r"    Method & A & B\_1 \\" in lines
    assert r"    local & 60.0 $\pm$ 0.0 & \textbf{50.0} \\" in lines
    assert r"    fedavg & \textbf{72.0} $\pm$ 5.0 & -- \\" in lines
    assert r"    other & -- & 25.0\rlap{$^{\dagger}$} \\" in lines
    said = caption(paper_columns({"A": RECORDS, "B_1": single}))
    assert "A: round 4, 3 seeds; B_1: round 4, 1 seed." in said


def test_measures_are_columns_each_with_its_direction():
    columns = paper_columns({"A": RECORDS}, ["accuracy", "loss"])
    text = as_markdown(columns)
    assert "| Method | Test accuracy (%) | Test loss |" in text
    assert "Higher is better for test accuracy. Lower is better for test loss" in text
    two = paper_columns({"A": RECORDS, "B": RECORDS}, ["accuracy", "loss"])
    head = "| Method | A, accuracy (%) | A, loss | B, accuracy (%) | B, loss |"
    assert head in as_markdown(two)


def test_missing_seeds_oracles_and_failures_are_said():
    metrics = RECORDS.metrics.copy()
    gone = (metrics["algorithm"] == "fedavg") & (metrics["seed"] == 2)
    broken = (metrics["algorithm"] == "ditto") & (metrics["round"] == 4)
    metrics.loc[broken, "train_loss"] = np.inf
    records = replace(RECORDS, metrics=metrics[~gone], oracles=("a_b & 50%",))
    columns = paper_columns({"A": records})
    assert "fedavg has 2 of 3 seeds" in caption(columns)
    text = as_markdown(columns)
    assert "| ditto (failed) | 72.0 |" in text
    assert r"| a\_b & 50% (oracle) | 70.7 ± 3.8 |" in text
    assert "stopped" not in caption(columns)


def test_an_algorithm_that_stopped_early_is_named_and_not_ranked():
    metrics = RECORDS.metrics
    early = (metrics["algorithm"] == "fedavg") & (metrics["round"] > 2)
    columns = paper_columns({"A": replace(RECORDS, metrics=metrics[~early])})
    assert "fedavg stopped at round 2 and is not ranked" in caption(columns)
    cell = cell_of(columns[0], "fedavg")
    assert not cell.best and not cell.like_best


def test_a_score_that_is_not_finite_is_a_word():
    metrics = RECORDS.metrics.copy()
    metrics.loc[metrics["algorithm"] == "ditto", "test_accuracy"] = np.nan
    columns = paper_columns({"A": replace(RECORDS, metrics=metrics)})
    assert "| ditto | not finite |" in as_markdown(columns)


def test_an_interval_that_the_range_cuts_is_shown_by_its_ends():
    records = records_of_seeds(local=[0.5, 0.6, 0.7], fedavg=[1.0, 0.98, 0.99])
    columns = paper_columns({"A": records})
    # 0.99 ± 0.0248 ends at 1, and 0.6 ± 0.248 does not.
    assert cell_of(columns[0], "fedavg")[:2] == ("99.0", "[96.5, 100.0]")
    assert cell_of(columns[0], "local")[:2] == ("60.0", "[35.2, 84.8]")
    assert "with the 95 % interval in brackets" in caption(columns)
    assert "99.0} [96.5, 100.0]" in as_latex(columns)


def test_numbers_have_the_digits_of_the_smallest_interval():
    records = make_records(n=4, labels=("local", "fedavg"), seeds=2, task="regression")
    metrics = records.metrics.assign(test_mae=1.0)
    for label, values in {"local": (2.0, 2.5), "fedavg": (1.226, 1.234)}.items():
        for seed, value in enumerate(values):
            mine = (metrics["algorithm"] == label) & (metrics["seed"] == seed)
            metrics.loc[mine, "test_mae"] = value
    records = replace(records, metrics=metrics, score="mae", higher_is_better=False)
    columns = paper_columns({"A": records})
    # Half an interval of two seeds is 12.7062 / 2 times their distance: 3.2 and 0.05.
    # Errors cannot be below 0, so intervals are longer above.
    assert columns[0].decimals == 2
    assert cell_of(columns[0], "fedavg").mean == "1.23"
    assert cell_of(columns[0], "local").mean == "2.25"
    assert cell_of(columns[0], "fedavg").best


def test_names_cannot_be_commands_of_latex_or_rows_of_markdown():
    assert latex_text(r"\input{x}^2~#1") == (
        r"\textbackslash{}input\{x\}\textasciicircum{}2\textasciitilde{}\#1"
    )
    assert latex_text("[2cm] a") == "{}[2cm] a"
    assert latex_text("*") == "{}*"
    assert latex_text('a\n\x1b"b"\u202e') == r"a \symbol{34}b\symbol{34}"
    records = records_of_seeds(**{"a|b\n*c*": [0.5], "local": [0.4]})
    assert r"| a\|b \*c\* | **50.0** |" in as_markdown(paper_columns({"A": records}))


def test_the_frame_has_all_numbers_and_no_infinite_ends():
    frame = as_frame(paper_columns({"A": RECORDS, "B": records_of_seeds(local=[0.5])}))
    row = frame[(frame["run"] == "A") & (frame["algorithm"] == "fedavg")].iloc[0]
    assert row["mean"] == pytest.approx(0.72)
    assert row["high"] - row["mean"] == pytest.approx(0.0496828, abs=1e-6)
    assert row["measure"] == "accuracy"
    assert pd.isna(frame.iloc[-1]["low"])
    assert not np.isinf(frame.select_dtypes(float).to_numpy()).any()


def test_records_without_results_are_refused():
    empty = replace(RECORDS, metrics=RECORDS.metrics.iloc[:0])
    with pytest.raises(InputError, match="the run 'A' has no results yet"):
        paper_columns({"A": empty})


def test_figures_without_matplotlib_name_the_extra(tmp_path, monkeypatch):
    from coterie.report.paper.figures import write_figures

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install coterie\[figures\]"):
        write_figures(make_records(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def written_figures(records, folder, **options):
    pytest.importorskip("matplotlib")
    from coterie.report.paper.figures import write_figures

    return write_figures(records, folder, **options)


def test_figures_are_pdf_files_with_the_same_bytes_each_time(tmp_path):
    names = ["curves.pdf", "gains-fedavg.pdf", "gains-ditto.pdf"]
    first = written_figures(make_records(), tmp_path / "one")
    again = written_figures(make_records(), tmp_path / "two")
    assert [path.name for path in first] == names
    for path, other in zip(first, again, strict=True):
        content = path.read_bytes()
        assert content.startswith(b"%PDF")
        assert content == other.read_bytes()
        assert b"/Type3" not in content
        assert b"CreationDate" not in content


@pytest.mark.parametrize(
    "records",
    [
        make_records(n=250, clusters=0, labels=("local", "fedavg"), weights=False),
        make_records(seeds=1, clusters=8, task="regression"),
        make_timed(),
        replace(
            make_records(labels=("local", "$x^2$ \\a", "中"), n=20, clusters=0),
            names=tuple(f"Hospital of a long name, $ {i}" for i in range(20)),
        ),
    ],
    ids=["crowd", "one seed", "time", "names"],
)
def test_figures_of_all_kinds_of_records_are_drawn(records, tmp_path):
    """Also where names have signs of mathematics, and letters that no font has."""
    paths = written_figures(records, tmp_path)
    assert all(path.stat().st_size > 1000 for path in paths)


def test_without_local_there_are_only_curves(tmp_path):
    records = make_records(labels=("fedavg", "ditto"))
    assert [p.name for p in written_figures(records, tmp_path)] == ["curves.pdf"]


def test_old_figures_stay_unless_replacing_is_asked_for(tmp_path):
    (path, *_) = written_figures(make_records(), tmp_path)
    path.write_text("mine")
    with pytest.raises(InputError, match=r"curves\.pdf exists"):
        written_figures(make_records(), tmp_path)
    assert path.read_text() == "mine"
    written_figures(make_records(), tmp_path, overwrite=True)
    assert path.read_bytes().startswith(b"%PDF")


def test_a_width_that_no_page_has_is_refused(tmp_path):
    with pytest.raises(InputError, match="`width` must be"):
        written_figures(make_records(), tmp_path, width=0.1)


def test_curves_have_one_row_for_each_number_of_each_client():
    records = make_records(n=3, labels=("local", "fedavg"), seeds=2, rounds=2)
    table = records.curves()
    columns = ["algorithm", "seed", "client", "name", "round", "metric", "value"]
    assert list(table) == columns
    assert len(table) == 3 * 2 * 2 * 3 * 3  # clients, labels, seeds, rounds, metrics
    one = table[(table["metric"] == "test_accuracy") & (table["client"] == 1)]
    one = one[(one["algorithm"] == "fedavg") & (one["seed"] == 1)]
    mine = records.metrics
    mine = mine[(mine["algorithm"] == "fedavg") & (mine["seed"] == 1)]
    expected = mine.loc[mine["client"] == 1, "test_accuracy"]
    assert one["value"].tolist() == expected.tolist()
    assert one["round"].tolist() == [0, 1, 2]
    assert "name" not in records.metrics  # the records stay as they were
