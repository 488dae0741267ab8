"""Claims about metrics.csv while a run goes on."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
import pytest

from coterie.study.experiment import Progress, run_study
from support.tiny_studies import CLIENTS, ROUNDS, made


def the_table(runs: Path) -> Path:
    (path,) = runs.glob("*/metrics.csv")
    return path


def test_metrics_grow_with_every_evaluation_and_end_as_they_are_written(tmp_path):
    seen: list[str] = []

    def look(p: Progress) -> None:
        seen.append(the_table(tmp_path).read_text())
        last = pd.read_csv(the_table(tmp_path)).iloc[-1]
        assert (last["algorithm"], last["round"]) == (p.label, p.t)

    result = run_study(made(checkpoint_seconds=0.0), runs=tmp_path, progress=look)
    # One evaluation before the first round, and one after each, of every client.
    rows = [len(text.splitlines()) - 1 for text in seen]
    after = [CLIENTS * (t + 1) for t in range(1, ROUNDS + 1)]
    assert rows == after + [CLIENTS * (ROUNDS + 1) + more for more in after]
    assert all(late.startswith(early) for early, late in itertools.pairwise(seen))
    final = the_table(tmp_path).read_text()
    assert seen[-1] == final  # one seed: algorithms come in the order of the study
    assert final == result.records.metrics.to_csv(index=False)


def test_a_run_that_goes_on_drops_what_was_not_saved_and_half_a_line(tmp_path):
    study = made(checkpoint_seconds=1e6)
    whole = run_study(study, runs=tmp_path / "whole")

    class Kill(BaseException):
        """Ends the run without saving, like kill -9."""

    def kill(p: Progress) -> None:
        if (p.label, p.t) == ("fedavg", 2):
            raise Kill

    with pytest.raises(Kill):
        run_study(study, runs=tmp_path / "again", progress=kill)
    table = the_table(tmp_path / "again")
    assert len(pd.read_csv(table).query("algorithm == 'fedavg'")) == 3 * CLIENTS
    with table.open("a") as file:
        file.write("fedavg,0,3,1,0.")
    seen: list[pd.DataFrame] = []
    run_study(
        study,
        runs=tmp_path / "again",
        progress=lambda p: seen.append(pd.read_csv(table)),
    )
    # First the finished algorithm is told; then the other is there from its start.
    assert set(seen[0]["algorithm"]) == {"local"}
    for shown in seen:
        assert not shown.duplicated(["algorithm", "seed", "round", "client"]).any()
    assert table.read_bytes() == the_table(tmp_path / "whole").read_bytes()
    assert (whole.folder / "metrics.csv").exists()
