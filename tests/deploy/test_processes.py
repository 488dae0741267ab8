"""Claims about processes that torchrun starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pandas as pd
import tomli_w
import torch
import torch.distributed as dist

from coterie.checks import DisconnectedError, InputError
from coterie.clients.simulation import Simulation
from coterie.data import Table
from coterie.deploy import processes
from coterie.deploy.heartbeats import Pulse, patience
from coterie.privacy.mechanisms import Mechanism
from coterie.records import Folder
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from support.federations import divided as of_sizes
from support.private_runs import entries
from support.refusals import refuses
from support.simulated import module, share_of
from support.tiny_studies import LINEAR, made

STUDY = {
    "name": "together",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 30, "dtype": "float64", "checkpoint_seconds": 0.0},
    "algorithm": [
        {"name": "fedavg", "lr": 0.05},
        {"name": "all_for_all", "lr": 0.05, "weights": "uniform"},
        {"name": "karula", "lr": 0.05, "radius": "optima"},
    ],
}


def start(folder: Path) -> subprocess.Popen:
    """The study in two processes."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words = ["-m", "coterie", "run", "study.toml", "--quiet", "--runs", "together"]
    return subprocess.Popen(
        [sys.executable, *torchrun, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def metrics(runs: Path) -> pd.DataFrame:
    (folder,) = runs.glob("[!.]*")
    return pd.read_csv(folder / "metrics.csv")


def test_torchrun_divides_a_study_and_a_killed_process_ends_it_until_it_goes_on(
    tmp_path,
):
    (tmp_path / "study.toml").write_text(tomli_w.dumps(STUDY))
    run_study(study_of(STUDY), runs=tmp_path / "alone")

    process = start(tmp_path)
    while not list(tmp_path.glob("together/*/cells/*.pt")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.kill(second_of(process.pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert errors.count("another process of this run ended or cannot be reached") <= 1
    assert not list(tmp_path.glob("together/*/report.html"))

    process = start(tmp_path)
    spoken, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert spoken.count("report:") == 1  # one process speaks
    exact = {"rtol": 1e-9, "atol": 1e-12}  # sums in another order
    expected = metrics(tmp_path / "alone")
    pd.testing.assert_frame_equal(metrics(tmp_path / "together"), expected, **exact)


ENDING = """
import atexit, torch.distributed as dist
from coterie.deploy import join_processes
atexit.register(lambda: print("in a group:", dist.is_initialized()))
assert join_processes("cpu").gather(1) == [1, 1]
"""


def test_a_process_leaves_its_group_before_it_ends(tmp_path):
    """Otherwise threads of the group abort it in about half of all runs."""
    (tmp_path / "ending.py").write_text(ENDING)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run = subprocess.run(
        [sys.executable, *torchrun, "ending.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    # Both may write at once, in between each other.
    assert run.stdout.count("False") == 2 and "True" not in run.stdout


def second_of(parent: int) -> int:
    """The child process of torchrun that has rank 1."""
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


def changing(server, here, *rows, say=""):
    """A coordinator's program whose answers grow with each call, or that refuses."""
    if say:
        raise InputError(say)
    width = 1 + (server or 0)
    answer = torch.arange(4.0)[:, None].expand(4, width)
    return width, answer, torch.arange(4) > 1


def steady(server, here, rows):
    """A coordinator's program with answers of one shape."""
    return None, 2 * rows, torch.arange(4)


def collectives_of(group, oracle) -> list[int]:
    """The number of collectives of each verb; raises if answers are wrong."""
    mine, counts = oracle.mine, [0]
    together = processes._call_collective

    def count_call(call):
        counts[-1] += 1
        together(call)

    processes._call_collective = count_call
    x = torch.arange(12.0).reshape(4, 3)
    ring = torch.eye(4).roll(1, 0) + torch.eye(4).roll(-1, 0)
    ones, groups = torch.ones(4), torch.tensor([2, 0, 2, 0])
    for verb, expected in (
        (lambda: oracle.average(ones[mine], x[mine]), x.mean(0).expand(4, 3)),
        (
            lambda: oracle.average(ones[mine], x[mine], groups[mine], count=3),
            ((x + x.roll(2, 0)) / 2),
        ),
        (lambda: oracle.mix(ring, x[mine]), ring @ x),
        (lambda: oracle.mix(ring[mine], x[mine]), ring @ x),
        *[(lambda: oracle.central(steady, None, x[mine])[1], 2 * x)] * 3,
    ):
        counts.append(0)
        assert torch.equal(verb(), expected[mine])
    server = None
    for width in (1, 2, 3):
        counts.append(0)
        server, answer, late = oracle.central(changing, server, x[mine, :2])
        assert answer.tolist() == [[float(i)] * width for i in range(4)[mine]]
        assert late.tolist() == [i > 1 for i in range(4)[mine]]
    counts.append(0)
    refuses("not today", oracle.central, changing, None, x[mine], say="not today")
    processes._call_collective = together
    return counts[1:]


def _one_of_two(rank: int, store: Path, work, pipe) -> None:
    """One of two processes, which are forked and need not import torch again."""
    shared = dist.FileStore(str(store), 2)
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=2)
    try:
        pipe.send(work(processes.Processes()))
        dist.barrier()
    except DisconnectedError:
        pipe.send("disconnected")
    except BaseException:
        pipe.send(traceback.format_exc())
    os._exit(0)  # without what pytest does at the end


def fork_two(work, store: Path) -> list:
    """The results of two processes; for one that was killed, the word `killed`."""
    context, started = multiprocessing.get_context("fork"), []
    for rank in range(2):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_one_of_two, args=(rank, store, work, there))
        process.start()
        there.close()
        started.append((process, here))
    found = []
    for process, pipe in started:
        try:
            found.append(pipe.recv())
        except EOFError:
            found.append("killed")
        process.join()
    return found


def divided_oracle(group):
    """An oracle for four clients with three features."""
    table = Table("ones", torch.ones(20, 3), torch.ones(20), "regression", 1)
    own, _ = share_of(of_sizes(table, sizes=(2, 2, 2, 2)), group)
    return Simulation(own, module(own), group=group).at(1)


def test_a_verb_is_one_collective_and_a_coordinator_two(tmp_path):
    found = fork_two(
        lambda group: collectives_of(group, divided_oracle(group)), tmp_path / "s"
    )
    # Others learn once what a coordinator answers with, or each time if it changes.
    once, anew, refused = [3, 2, 2], [3, 4, 3], [3]
    assert found == [[1, 1, 1, 1, *once, *anew, *refused]] * 2


def private_work(folder: Path, source: str, *, fatal: int = 0):
    """A private study whose second process is killed at some release."""
    privacy = {"clip": 0.5, "noise": 4.0, "noise_source": source}
    run = {"rounds": 12, "evaluate_every": 12, "checkpoint_seconds": 0.0}
    study = made(
        {**LINEAR, "privacy": privacy}, algorithm=STUDY["algorithm"][:1], **run
    )

    def work(group):
        really, rows = Mechanism.release, [0]

        def released(self, *args, **options):
            found = really(self, *args, **options)
            if self.noise == 2.0:  # or of clients without data, who plan ahead
                rows[0] += 1
                with (folder / f"left {group.rank}").open("a") as file:
                    file.write("row\n")
                if group.rank and rows[0] == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
            return found

        Mechanism.release = released  # of this process
        return str(run_study(study, runs=folder / "runs", group=group).folder)

    return work


def test_killed_private_processes_have_charged_what_left(tmp_path):
    """A process dies at release 5, after a new start at release 11, and then never."""
    for number, fatal in enumerate((5, 11)):
        work = private_work(tmp_path, "system", fatal=fatal)
        assert fork_two(work, tmp_path / f"s{number}") == ["disconnected", "killed"]
    (folder,) = set(fork_two(private_work(tmp_path, "system"), tmp_path / "last"))
    rows = len((tmp_path / "left 0").read_text().splitlines())
    (entry,) = entries(tmp_path / "runs")
    assert (entry.round, entry.reserved) == (12, 0.0)
    cost = (2 * 0.5 / 2.0) ** 2  # (sensitivity / noise)^2 of a release
    assert rows > 12 and entry.spent >= cost * rows - 1e-9
    assert Folder(Path(folder)).cell("fedavg", 0).repeated > 0


def test_killed_private_processes_with_seeded_noise_go_on_bit_by_bit(tmp_path):
    for place, fatal in (("parts", 11), ("parts", 0), ("whole", 0)):
        (tmp_path / place).mkdir(exist_ok=True)
        work = private_work(tmp_path / place, "seed", fatal=fatal)
        found = fork_two(work, tmp_path / f"{place} {fatal}")
        assert ("killed" in found) == bool(fatal), found
    tables = [metrics(tmp_path / place / "runs") for place in ("parts", "whole")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


SPEAKING = """
import os, signal, time
from coterie.deploy import join_processes
group = join_processes("cpu")
group.gather(0)
if group.rank == 1:
    {here}
group.gather(0)
print("together")
"""


def in_two(folder: Path, here: str) -> list[subprocess.Popen]:
    """Two processes, as torchrun starts them; the second one also runs `here`."""
    (folder / "speaking.py").write_text(SPEAKING.format(here=here))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    there |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "COTERIE_PATIENCE": "1.5"}
    started = [
        subprocess.Popen(
            [sys.executable, "speaking.py"],
            cwd=folder,
            env={**os.environ, **there, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    started[0].store = store  # which lives as long as they do
    return started


def test_a_stopped_process_ends_the_others_which_name_it(tmp_path):
    waits, stops = in_two(tmp_path, "os.kill(os.getpid(), signal.SIGSTOP)")
    try:
        _, errors = waits.communicate(timeout=60)
    finally:
        stops.kill()
        stops.communicate()
    assert waits.returncode == 2
    assert "rank 1 of the 2 processes of this run gave no sign of life" in errors


def test_a_process_that_only_computes_for_long_is_waited_for(tmp_path):
    """The computation takes four times the patience."""
    for process in in_two(tmp_path, "time.sleep(6)"):
        spoken, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and spoken == "together\n", errors


def test_signs_of_life_are_missed_in_a_row_and_later_at_the_start():
    pulse = Pulse([1, 2])
    assert not any(pulse.find_lost({1: 0, 2: 5}) for _ in range(12))
    assert pulse.find_lost({1: 0, 2: 5}) == [2]  # the first reading was a sign
    assert pulse.find_lost({1: 0, 2: 6}) == []  # it is back
    assert not any(
        pulse.find_lost({1: 0, 2: 2**40 + 6}) for _ in range(45)
    )  # it has left
    assert pulse.find_lost({1: 0, 2: 2**40 + 6}) == [1]  # 60 readings, and never a sign


def test_a_patience_that_is_not_a_number_of_seconds_is_refused(monkeypatch):
    for text in ("soon", "0", "nan", "inf", "-3"):
        monkeypatch.setenv("COTERIE_PATIENCE", text)
        refuses(f"between 1 and 86400, got '{text}'", patience)
