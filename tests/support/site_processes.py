"""A hub and members as processes, which end themselves by SIGKILL at chosen messages.

Processes are forked from one that has imported everything, so a restart is quick. They
do what `coterie hub` and `coterie join` do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch

from coterie.deploy.sites import participation, serving
from coterie.deploy.sites.channel import HubChannel
from coterie.deploy.sites.comparing import commits_in, simulated_models
from coterie.deploy.sites.demonstrations import demonstrate
from coterie.deploy.sites.hub import Hub
from coterie.deploy.sites.joining import ready_to_join
from coterie.records import Folder
from coterie.study import read_study
from support.sites import NAMES, free_port, site_files

HUB = "hub"
_KILLED = -signal.SIGKILL

_STUDY = """\
name = "sites"
[data]
path = "all.csv"
client = "hospital"
target = "outcome"
[split]
test = 0.3
[model]
name = "logistic"
[run]
rounds = {rounds}
evaluate_every = {rounds}
batch_size = 8
seeds = [0]
{algorithms}
[sites]
patience = 3
least_members = 2
"""


def study_of_processes(rounds: int, *methods: str) -> str:
    """The study file of these methods."""
    entries = "".join(f'[[algorithm]]\nname = "{m}"\nlr = 0.05\n' for m in methods)
    return _STUDY.format(rounds=rounds, algorithms=entries)


class Kill(NamedTuple):
    """The message at which a party ends by SIGKILL, and how late it returns."""

    party: str
    step: int
    place: int  # of the call in the step; -1: `begin`
    before: bool  # whether the message is lost; otherwise its answer
    back: float = 0.0  # seconds


def _end_at(kills: Sequence[Kill], folder: Path) -> None:
    """Ends this process; a file for each kill says that it has happened."""
    for kill in kills:
        (folder / f"{kill}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def _due(kills: Sequence[Kill], folder: Path, header: dict, before: bool) -> list[Kill]:
    """The kills that happen at this message and have not happened."""
    begins = header.get("kind") == "begin"
    place = -1 if begins else header.get("number")
    at = (header.get("step"), place, before)
    return [
        kill
        for kill in kills
        if (kill.step, kill.place, kill.before) == at
        and not (folder / f"{kill}").exists()
    ]


def _member(study: Path, site: Path, kills: Sequence[Kill], folder: Path) -> None:
    torch.set_num_threads(1)

    class Channel(HubChannel):
        def ask(self, parcel, *, patiently=True):
            if due := _due(kills, folder, parcel.header, True):
                _end_at(due, folder)
            found = super().ask(parcel, patiently=patiently)
            waits = found.header.get("wait")
            if due := [] if waits else _due(kills, folder, parcel.header, False):
                _end_at(due, folder)
            return found

    participation.HubChannel = Channel
    with (folder / f"{site.parent.name}.txt").open("a") as file:
        participation.take_part(
            ready_to_join(study, site), lambda line: print(line, file=file, flush=True)
        )


def _hub(study: Path, place: Path, port: int, kills: Sequence[Kill]) -> None:
    folder, lock, answer = place.parents[1], threading.Lock(), Hub.answer

    def dying(hub, rank, parcel):
        header = dict(parcel.header)
        with lock:
            if due := _due(kills, folder, header, True):
                _end_at(due, folder)
        found = answer(hub, rank, parcel)
        if not found.header.get("wait") and (due := _due(kills, folder, header, False)):
            if lock.acquire(blocking=False):  # the first answer leaves, others do not
                threading.Timer(0.1, _end_at, (due, folder)).start()
                return found
            time.sleep(1.0)
        return found

    Hub.answer = dying
    files = serving.read_hub(study, place / "roster.toml", None)
    with (folder / "hub.txt").open("a") as file:
        with serving.serving(files, f"127.0.0.1:{port}", place) as (hub, _):
            ended = serving.follow(hub, lambda line: print(line, file=file, flush=True))
            print(ended, file=file, flush=True)


class Parties:
    """A hub and four members, each a process of its own."""

    def __init__(self, folder: Path, study: str, kills: Sequence[Kill] = ()) -> None:
        """Makes the files and starts all processes."""
        self.folder, self.kills, self.port = folder, kills, free_port()
        files = site_files(folder)
        self.study = folder / "study.toml"
        self.study.write_text(study)
        demonstrate(self.study, NAMES, folder / "demo", f"127.0.0.1:{self.port}")
        for name in NAMES:
            rows = pd.read_csv(files[name])
            rows.to_csv(folder / "demo" / name / f"{name}.csv", index=False)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        with pytest.MonkeyPatch.context() as patch:  # or it cannot find this module
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            forkserver.ensure_running()
        self._all = {name: self.start(name) for name in (HUB, *NAMES)}

    def start(self, name: str) -> multiprocessing.Process:
        """Starts a party."""
        own = [kill for kill in self.kills if kill.party == name]
        place = self.folder / "demo" / name
        if name == HUB:
            target, words = _hub, (self.study, place, self.port, own)
        else:
            target, words = _member, (self.study, place / "site.toml", own, self.folder)
        found = self._context.Process(target=target, args=words, daemon=True)
        found.start()
        return found

    def kill(self, names: Sequence[str]) -> None:
        """Ends parties by SIGKILL, from outside."""
        for name in names:
            self._all[name].kill()
        for name in names:
            self._all[name].join()

    def restart(self, name: str) -> None:
        """Starts a party that has ended."""
        self._all[name] = self.start(name)

    def is_over(self) -> bool:
        """Whether a party has ended by itself; raises if it has failed."""
        ended = {name: one.exitcode for name, one in self._all.items()}
        failed = [
            name for name, code in ended.items() if code not in (None, 0, _KILLED)
        ]
        if failed:
            said = (self.folder / "hub.txt").read_text()[-500:]
            raise RuntimeError(f"{failed[0]} has failed: {said}")
        return all(code == 0 for code in ended.values())

    def run(self, seconds: float) -> None:
        """Restarts parties that have ended by SIGKILL until all have finished."""
        end, back = time.monotonic() + seconds, dict[str, float]()
        while not self.is_over():
            now = time.monotonic()
            for name, one in self._all.items():
                if one.exitcode != _KILLED:
                    continue
                last = max(
                    (k for k in self.kills if k.party == name and self.happened(k)),
                    key=lambda kill: kill.step,
                )
                if now >= back.setdefault(name, now + last.back):
                    del back[name]
                    self.restart(name)
            if now > end:
                raise TimeoutError(f"step {self.last_step()} is the last one.")
            time.sleep(0.05)

    def happened(self, kill: Kill) -> bool:
        """Whether a party has ended at this message."""
        return (self.folder / f"{kill}").exists()

    @property
    def log(self) -> Path:
        """The log of the hub."""
        (found,) = (self.folder / "demo" / HUB).glob("*.db")
        return found

    def last_step(self) -> int:
        """The last finished step; -1 before the first."""
        try:
            with sqlite3.connect(f"file:{self.log}?mode=ro", uri=True) as log:
                found = log.execute("SELECT max(step) FROM commits").fetchone()[0]
        except (ValueError, sqlite3.Error):
            return -1
        return -1 if found is None else found

    def difference(self) -> float:
        """The largest difference of a model to the simulation."""
        commits, worst = commits_in(self.log), 0.0
        study = read_study(self.study)
        for label, models in simulated_models(study, 0, commits).items():
            for rank, name in enumerate(NAMES):
                (run,) = (self.folder / "demo" / name / "runs").glob("sites-*")
                own = Folder(run).models(label, 0)
                worst = max(worst, float((own - models[rank]).abs().max()))
        return worst

    def close(self) -> None:
        """Ends all processes."""
        for one in self._all.values():
            one.kill()
            one.join()
