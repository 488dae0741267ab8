"""Sites on the loopback: the time of a round, bytes, and memory.

    python benchmarks/sites.py             a round of 8 members, with and without masks
    python benchmarks/sites.py twenty      a study of 20 members

Every party is a process of its own. Rows are masked unless it says "in the clear".
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import coterie as co
from coterie.deploy.sites.comparing import commits_in, simulated_models
from coterie.records import Folder

STUDY = """\
name = "bench"
[data]
path = "all.csv"
client = "site"
target = "y"
task = "binary"
[model]
{model}
[run]
rounds = {rounds}
evaluate_every = {rounds}
batch_size = 16
seeds = [0]
[sites]
patience = {patience}
masks = {masks}
{algorithms}
"""


class Parties:
    """A hub and members, each a process, in a temporary folder."""

    def __init__(self, folder: Path, study: str, sites: int, rows: int, columns: int):
        self.folder, self.names = folder, [f"site{k:02d}" for k in range(sites)]
        rng = np.random.default_rng(0)
        x = rng.normal(size=(sites * rows, columns)).astype(np.float32)
        y = (x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0).astype(int)
        table = pd.DataFrame({f"x{j}": x[:, j] for j in range(columns)})
        table = table.assign(y=y, site=np.repeat(self.names, rows))
        (folder / "study.toml").write_text(study)
        table.to_csv(folder / "all.csv", index=False)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
        words = ["roster", "demo", "study.toml", *self.names, "--hub", self.address]
        self._start(folder, *words).wait()
        for name in self.names:
            own = table[table["site"] == name].drop(columns="site")
            own.to_csv(folder / "demo" / name / f"{name}.csv", index=False)

    def _start(self, folder: Path, *words: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "coterie", *words]
        with (folder / f"{words[0]}.txt").open("a") as log:
            return subprocess.Popen(line, cwd=folder, stdout=log, stderr=log)

    def hub(self) -> subprocess.Popen[bytes]:
        """Starts the hub."""
        line = ["../../study.toml", "--roster", "roster.toml", "--listen", self.address]
        return self._start(self.folder / "demo" / "hub", "hub", *line)

    def member(self, name: str) -> subprocess.Popen[bytes]:
        """Starts a member."""
        line = ["../../study.toml", "--site", "site.toml"]
        return self._start(self.folder / "demo" / name, "join", *line)

    @property
    def log(self) -> Path:
        """The log of the hub."""
        (found,) = (self.folder / "demo" / "hub" / "hub").glob("*.db")
        return found

    def store_of(self, name: str) -> Path:
        """The own log of a member."""
        (found,) = (self.folder / "demo" / name / "runs").glob("*/member/site.db")
        return found

    def difference(self) -> float:
        """The largest difference of a model to the simulation."""
        commits, worst = commits_in(self.log), 0.0
        study = co.read_study(self.folder / "study.toml")
        for label, models in simulated_models(study, 0, commits).items():
            for rank, name in enumerate(self.names):
                (run,) = (self.folder / "demo" / name / "runs").glob("bench-*")
                own = Folder(run).models(label, 0)
                worst = max(worst, float((own - models[rank]).abs().max()))
        return worst


def peak_memory(process: subprocess.Popen[bytes]) -> float:
    """The most memory that a process has had, in MB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    found = re.findall(r"VmHWM:\s+(\d+)", text)  # none if it has just ended
    return int(found[0]) / 1024 if found else 0.0


FEDAVG = '[[algorithm]]\nname = "fedavg"\nlr = 0.05\nsteps = {steps}'


def round_of_eight(folder: Path, masks: bool, steps: int) -> dict[str, Any]:
    """Seconds of a round of 8 members with an MLP of 68,000, and its bytes."""
    rounds = 30
    text = STUDY.format(
        model='name = "mlp"\nhidden = [250]',
        rounds=rounds,
        patience=60,
        masks=str(masks).lower(),
        algorithms=FEDAVG.format(steps=steps),
    )
    parties = Parties(folder, text, 8, 100, 268)
    memory = follow(parties)
    with sqlite3.connect(parties.log) as db:
        began = db.execute("SELECT step, began FROM attempts ORDER BY step").fetchall()
    times = [b - a for (_, a), (_, b) in itertools.pairwise(began[2:])]
    with sqlite3.connect(parties.store_of(parties.names[0])) as db:
        sent = db.execute(
            "SELECT sum(bytes) FROM departures WHERE step = 5 AND kind != 'vote'"
        ).fetchone()[0]
    parameters = Folder(next((folder / "demo" / "site00" / "runs").glob("bench-*")))
    counted = 4 * parameters.models("fedavg", 0).shape[1]
    return {
        "seconds": sorted(times)[len(times) // 2],
        "bytes up": sent,
        "bytes that the verb counts": counted,
        "hub MB": round(memory),
        "difference": parties.difference(),
    }


def alone(folder: Path, steps: int) -> float:
    """Seconds of computing in a round: one process does the work of all members."""
    study = co.read_study(folder / "study.toml")
    from coterie.engine.rounds import run_rounds
    from coterie.study.setup import prepare

    setup = prepare(study, 0)
    algorithm = setup.algorithm(study.algorithms[0])
    began = time.perf_counter()
    for _ in run_rounds(algorithm, setup.simulation, setup.x, rounds=20, seed=0):
        pass
    return (time.perf_counter() - began) / 20


def twenty(folder: Path) -> dict[str, Any]:
    """Memory of the hub, and seconds, of a study of 20 members with a larger MLP."""
    text = STUDY.format(
        model='name = "mlp"\nhidden = [250]',
        rounds=10,
        patience=120,
        masks="true",
        algorithms=FEDAVG.format(steps=5),
    )
    parties, began = Parties(folder, text, 20, 60, 268), time.monotonic()
    memory = follow(parties)
    with sqlite3.connect(parties.log) as db:
        times = db.execute("SELECT began FROM attempts ORDER BY step").fetchall()
    first, last = times[1][0], times[-1][0]
    return {
        "hub MB": round(memory),
        "seconds": round(time.monotonic() - began),
        "seconds of a round": round((last - first) / (len(times) - 2), 2),
        "difference": parties.difference(),
    }


def follow(parties: Parties) -> float:
    """Runs the hub and all members; gives the most memory of the hub, in MB."""
    hub = parties.hub()
    members = [parties.member(name) for name in parties.names]
    memory = 0.0
    while any(member.poll() is None for member in members):
        if hub.poll() is None:
            memory = max(memory, peak_memory(hub))
        time.sleep(0.2)
    hub.wait()
    return memory


def main(what: str) -> None:
    """Prints what was measured."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if what == "twenty":
            print(json.dumps(twenty(folder)))
        else:
            for masks in (True, False):
                place = folder / str(masks)
                place.mkdir()
                found = round_of_eight(place, masks, 20)
                print(f"masks: {masks}", json.dumps(found))
            print("computing alone:", alone(folder / "True", 20))


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["round"]))
