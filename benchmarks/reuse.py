"""What keys of cells cost a study, and what they save.

    python benchmarks/reuse.py

A study of three methods with default options is run with and without keys, in turns and
in one process, each time in a new runs folder. "Without" leaves out keys, notes and the
index. Then one method is added, and the study is run in the folder that has the others.
All times are seconds of the processor, because others may work on the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch

from coterie.records import digests
from coterie.records.versions import shared_files
from coterie.study import run_study, study_of
from coterie.study.reuse import Reuse

METHODS = ("local", "fedavg", "ditto")


def tables(methods: tuple[str, ...]) -> dict:
    """A default study of a table with twenty clients."""
    return {
        "name": "default",
        "data": {"name": "digits"},
        "split": {"name": "label_swap", "clients": 20},
        "model": {"name": "linear"},
        "run": {"rounds": 20},
        "algorithm": [{"name": name} for name in methods],
    }


def seconds(methods: tuple[str, ...], runs: Path) -> float:
    """The seconds of the processor that a study takes."""
    began = time.process_time()
    run_study(study_of(tables(methods)), runs=runs)
    return time.process_time() - began


def measure(turns: int) -> None:
    """Prints times and ratios."""
    torch.set_num_threads(1)
    files = sorted(shared_files())
    times = []
    for _ in range(turns):
        digests._KNOWN.clear()
        began = time.process_time()
        digests.code_digest(files)
        times.append(time.process_time() - began)
    print(f"code, first time    {1000 * statistics.median(times):.0f} ms")
    began = time.process_time()
    digests.code_digest(files)
    print(f"code, later         {1000 * (time.process_time() - began):.0f} ms")
    ratios, plain, more = [], [], []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            keyed = seconds(METHODS, Path(one))
            with (
                mock.patch.object(Reuse, "begin", lambda *given: {}),
                mock.patch.object(Reuse, "add", lambda *given: None),
            ):
                plain.append(seconds(METHODS, Path(two)))
            ratios.append(keyed / plain[-1])
            more.append(seconds((*METHODS, "apfl"), Path(one)) / plain[-1])
    print(f"study without keys  {statistics.median(plain):.1f} s")
    print(f"with keys           {statistics.median(ratios):.3f} times")
    print(f"one more method     {statistics.median(more):.3f} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    measure(parser.parse_args().turns)
