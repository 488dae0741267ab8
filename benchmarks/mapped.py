"""Memory of a study whose data stay in their file.

    python benchmarks/mapped.py
    python benchmarks/mapped.py --kind npz

It writes 300,000 samples of 784 numbers (897 MiB), runs a study of them in a process of
its own, and prints the most memory that this process took. Pages of files do not count:
the system takes them back when it needs memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

SAMPLES, COLUMNS, CLIENTS, AT_ONCE = 300_000, 784, 20, 10_000


def write_data(folder: Path, kind: str) -> None:
    """Writes the data as a folder of npy files, and as npz if asked."""
    rng = np.random.default_rng(0)
    shape, path = (SAMPLES, COLUMNS), folder / "features.npy"
    features = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for first in range(0, SAMPLES, AT_ONCE):
        some = rng.standard_normal((AT_ONCE, COLUMNS), dtype=np.float32)
        features[first : first + AT_ONCE] = some
    features.flush()
    targets = np.arange(SAMPLES) % 10
    client = np.arange(SAMPLES) * CLIENTS // SAMPLES
    np.save(folder / "targets.npy", targets)
    np.save(folder / "client.npy", client)
    if kind == "npz":
        arrays = {"features": features, "targets": targets, "client": client}
        np.savez(folder / "data.npz", **arrays)


def memory() -> tuple[int, int]:
    """MiB of this process that are its own, and that are pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if "Rss" in line}
    return int(found["RssAnon"]) // 1024, int(found["RssFile"]) // 1024


def run_study(folder: Path, kind: str) -> None:
    """Runs the study and prints the most memory that it took."""
    import torch

    import coterie as co

    run = {"rounds": 2, "batch_size": 16}
    entry = {"name": "local", "lr": 0.1, "steps": 3}
    tables = {"model": {"name": "linear"}, "run": run, "algorithm": [entry]}
    if kind == "table":
        features = np.load(folder / "features.npy", mmap_mode="c")
        rows = (torch.from_numpy(features), torch.arange(SAMPLES) % 10)
        who = torch.arange(SAMPLES) * CLIENTS // SAMPLES
        data = co.Table("big", *rows, "classification", 10, group=who)
        study = co.study_of(tables, data=data)
    else:
        path = str(folder / "data.npz" if kind == "npz" else folder)
        study = co.study_of(
            {**tables, "data": {"path": path, "task": "classification"}}
        )
    seen, done, began = [memory()], threading.Event(), time.perf_counter()

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(memory())

    thread = threading.Thread(target=watch)
    thread.start()
    co.run_study(study, runs=folder / "runs")
    done.set()
    thread.join()
    most = [max(column) for column in zip(*seen, strict=True)]
    own, files = (most[k] - seen[0][k] for k in range(2))
    print(
        f"{kind}: {4 * SAMPLES * COLUMNS / 2**20:.0f} MiB of features; the study took "
        f"{own} MiB of memory and {files} MiB of pages of files, in "
        f"{time.perf_counter() - began:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["npy", "npz", "table"], default="npy")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        run_study(given.folder, given.kind)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), given.kind)
        again = [sys.executable, __file__, "--kind", given.kind, "--folder", folder]
        subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
