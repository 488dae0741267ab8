"""Records of studies that were never run, and their pages."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.record import Records, Snapshots

ALGORITHMS = ("local", "fedavg", "ditto")


def make_records(
    *,
    n: int = 12,
    clusters: int = 2,
    labels: tuple[str, ...] = ALGORITHMS,
    seeds: int = 3,
    rounds: int = 4,
    task: str = "classification",
    weights: bool = True,
    spread: float = 0.05,
) -> Records:
    rng = np.random.default_rng(7)
    client = np.arange(n)
    cluster = client % clusters if clusters else np.full(n, -1)
    # Clients of a bad cluster for averaging lose with the later algorithms.
    level = 0.6 + 0.1 * rng.random(n)
    sizes = rng.integers(20, 80, n)
    metrics, costs, matrices = [], [], {}
    for a, label in enumerate(labels):
        shift = 0.05 * a * np.where(cluster == 0, 1, -0.5)
        for seed in range(seeds):
            for t in range(rounds + 1):
                progress = 1 - 0.6**t
                noise = spread * rng.standard_normal(n)
                score = np.clip((level + shift) * progress + noise, 0, 1)
                table = {"algorithm": label, "seed": seed, "round": t, "client": client}
                table |= {"test_loss": 2 - 1.5 * score, "train_loss": 1.9 - 1.5 * score}
                if task != "regression":
                    table["test_accuracy"] = score
                metrics.append(pd.DataFrame(table))
                cost = {"algorithm": label, "seed": seed, "round": t}
                cost |= {"gradients": 160 * n * t, "bytes": 4000 * a * n * t}
                costs.append(cost | {"seconds": 0.1 * t})
            if weights:
                kept = (cluster[:, None] == cluster) | (a < 2)
                start = np.full((n, n), 1 / n)
                end = kept / kept.sum(1, keepdims=True)
                end = np.eye(n) if label == "local" else end
                steps = np.linspace(0, 1, 5)[:, None, None]
                matrix = (1 - steps) * start + steps * end
                when = np.linspace(0, rounds, 5).astype(int)
                matrices[label, seed] = Snapshots(when, matrix)
    study = {
        "name": "A study",
        "data": {"name": "digits", "note": "Handwritten digits, bundled."},
        "split": {"name": "clusters", "clients": n},
        "model": {"name": "mlp", "hidden": [32]},
        "run": {"rounds": rounds, "seeds": list(range(seeds)), "device": None},
        "algorithm": [{"name": x, "label": x, "lr": 0.1} for x in labels],
    }
    clients = pd.DataFrame({"client": client, "cluster": cluster, "train": sizes})
    clients["validation"], clients["test"] = sizes // 4, sizes // 3
    clients = pd.concat([clients.assign(seed=s) for s in range(seeds)])
    return Records(
        study=study,
        versions={"coterie": "0.1.0", "torch": "2.6"},
        task=task,
        clients=clients.reset_index(drop=True),
        metrics=pd.concat(metrics, ignore_index=True),
        rounds=pd.DataFrame(costs),
        weights=matrices,
    )


def written(records: Records, folder: Path) -> str:
    """The page without plotly.js, which names addresses that it does not fetch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "get_plotlyjs", str)
        path = report.write_report(records, folder / "report.html")
    return path.read_text("utf-8")


@cache
def usual_page() -> str:
    """The page of the usual records."""
    with TemporaryDirectory() as folder:
        return written(make_records(), Path(folder))


class Fetches(HTMLParser):
    """Everything that a browser would load or follow by itself."""

    def __init__(self) -> None:
        HTMLParser.__init__(self)
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [v or "" for k, v in attrs if k in ("src", "href", "srcset")]


def rendered(page: Path, folder: Path) -> tuple[str, str]:
    """The document after its scripts ran, and what the browser logged."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    flags += "--disable-background-networking --disable-component-update "
    flags += "--disable-sync --enable-logging=stderr --window-size=1280,2000 "
    flags += f"--virtual-time-budget=20000 --user-data-dir={folder} --dump-dom"
    command = [browser, *flags.split(), page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr
