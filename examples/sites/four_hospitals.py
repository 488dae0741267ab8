"""A hub and four hospitals on this machine: one is killed, and comes back.

    python examples/sites/four_hospitals.py [FOLDER]

Every party is a process of its own, with its own key and its own rows. At the end, the
models of all hospitals are compared with a simulation in which the same hospitals took
part in each round. `make sites` runs this.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch

import coterie as co
from coterie.deploy.sites.comparing import commits_in, simulated_models
from coterie.records import Folder

NAMES = ("Aarau", "Basel", "Bern", "Chur")
LOST = "Basel"
STUDY = """\
name = "hospitals"
[data]
path = "all.csv"
client = "hospital"
target = "outcome"
[split]
name = "natural"
test = 0.3
[model]
name = "logistic"
[run]
rounds = 150
evaluate_every = 50
batch_size = 8
seeds = [0]
[[algorithm]]
name = "local"
lr = 0.1
[[algorithm]]
name = "fedavg"
lr = 0.1
steps = 5
[[algorithm]]
name = "ditto"
lr = 0.1
steps = 5
[[algorithm]]
name = "decentralised_sgd"
lr = 0.1
[sites]
patience = 2
"""


STARTED: list[subprocess.Popen[str]] = []


def coterie(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A process of the command `coterie` in this folder; what it says is in a file."""
    line = [sys.executable, "-m", "coterie", *words]
    with (folder / f"{words[0]}.txt").open("a") as log:
        found = subprocess.Popen(line, cwd=folder, stdout=log, stderr=log, text=True)
    STARTED.append(found)
    return found


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for_text(path: Path, text: str, seconds: float = 120.0) -> None:
    """Waits until a file has a text."""
    end = time.monotonic() + seconds
    while not path.exists() or text not in path.read_text():
        for one in STARTED:
            if (one.poll() or 0) > 0:  # below zero, we have killed it
                raise SystemExit(f"a process has failed: {one.args}")
        if time.monotonic() > end:
            raise SystemExit(f"{path} does not say {text!r} after {seconds:g} seconds")
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Trains, kills a member, lets it return, and compares the models."""
    folder.mkdir(parents=True, exist_ok=True)
    study, address = folder / "study.toml", f"127.0.0.1:{free_port()}"
    study.write_text(STUDY)
    rows = pd.read_csv(Path(__file__).parents[1] / "hospitals.csv")
    rows = rows[rows["hospital"].isin(NAMES)]
    rows.to_csv(folder / "all.csv", index=False)
    demo = ("roster", "demo", "study.toml", *NAMES, "--hub", address)
    if coterie(folder, *demo).wait():
        raise SystemExit((folder / "roster.txt").read_text())
    for name in NAMES:
        own = rows[rows["hospital"] == name].drop(columns="hospital")
        own.to_csv(folder / "demo" / name / f"{name}.csv", index=False)

    began = time.monotonic()
    place = folder / "demo" / "hub"
    hub = coterie(
        place, "hub", "../../study.toml", "--roster", "roster.toml", "--listen", address
    )
    members = {name: join(folder, name) for name in NAMES}
    print(f"a hub and {len(NAMES)} members begin, each in a process of its own")
    wait_for_text(place / "hub.txt", "fedavg, seed 0, round 4")
    members[LOST].kill()
    members[LOST].wait()
    print(f"killed {LOST} while fedavg trains; the others go on without it")
    wait_for_text(place / "hub.txt", f"{LOST} is lost")
    wait_for_text(place / "hub.txt", "ditto, seed 0, round 3")
    members[LOST] = join(folder, LOST)
    print(f"{LOST} returns, and does again what it missed")
    ends = [process.wait(300) for process in (*members.values(), hub)]
    print(f"the run took {time.monotonic() - began:.0f} seconds")
    if any(ends):
        raise SystemExit(f"a process has failed; see {folder}")
    compare(folder)


def join(folder: Path, name: str) -> subprocess.Popen[str]:
    """The process of a member."""
    place = folder / "demo" / name
    return coterie(place, "join", "../../study.toml", "--site", "site.toml")


def compare(folder: Path) -> None:
    """Says how far the models are from those of a simulation, and stops if they are."""
    (log,) = (folder / "demo" / "hub" / "hub").glob("*.db")
    commits = commits_in(log)
    whole = sum(len(one.present) == len(NAMES) for one in commits)
    print(f"{len(commits)} steps, {len(commits) - whole} of them without {LOST}")
    study = co.read_study(folder / "study.toml")
    worst = 0.0
    for label, models in simulated_models(study, 0, commits).items():
        for rank, name in enumerate(NAMES):
            (run,) = (folder / "demo" / name / "runs").glob("hospitals-*")
            own = Folder(run).models(label, 0)
            worst = max(worst, float((own - models[rank]).abs().max()))
    print(f"largest difference to the simulation, over all models: {worst:.1e}")
    if not worst < 1e-5 or not torch.isfinite(torch.tensor(worst)):
        raise SystemExit("the models differ")


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            main(Path(sys.argv[1]))
        else:
            with tempfile.TemporaryDirectory() as temporary:
                main(Path(temporary))
    finally:
        for process in STARTED:
            process.kill()
