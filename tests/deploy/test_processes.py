"""Claims about processes that torchrun starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import tomli_w

STUDY = {
    "name": "together",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 6, "dtype": "float64", "checkpoint_seconds": 0.0},
    "algorithm": [
        {"name": "fedavg", "lr": 0.05},
        {"name": "all_for_all", "lr": 0.05, "weights": "uniform"},
        {"name": "karula", "lr": 0.05},
    ],
}


def command(folder: Path, processes: int, *words: str) -> list[str]:
    (folder / "study.toml").write_text(tomli_w.dumps(STUDY))
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    start = [*torchrun, "-m", "coterie"] if processes > 1 else ["-m", "coterie"]
    return [sys.executable, *start, "run", "study.toml", "--quiet", *words]


def called(folder: Path, processes: int, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command(folder, processes, *words),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def metrics(runs: Path) -> pd.DataFrame:
    (folder,) = runs.iterdir()
    return pd.read_csv(folder / "metrics.csv")


def test_torchrun_divides_a_study_and_a_killed_process_ends_it_until_it_goes_on(
    tmp_path,
):
    assert called(tmp_path, 1, "--runs", "alone").returncode == 0
    expected = metrics(tmp_path / "alone")

    found = called(tmp_path, 2, "--runs", "together")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("report:") == 1  # one process speaks
    exact = {"rtol": 1e-9, "atol": 1e-12}  # sums in another order
    pd.testing.assert_frame_equal(metrics(tmp_path / "together"), expected, **exact)

    long = ("--set", "run.rounds=100000", "--runs", "long")
    process = subprocess.Popen(
        command(tmp_path, 2, *long),
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(tmp_path.glob("long/*/cells/*.pt")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    os.kill(second_of(process.pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert errors.count("another process of this run ended or cannot be reached") <= 1
    (cell,) = tmp_path.glob("long/*/cells/*.pt")
    assert cell.stat().st_size > 0


def second_of(parent: int) -> int:
    """The child that torchrun made the process of rank 1."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended, or is somebody else's
                continue
            if int(fields[1]) == parent and b"RANK=1" in words:
                return int(folder.name)
    raise AssertionError("torchrun has no child of rank 1.")
