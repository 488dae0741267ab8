"""Which cells of a study were trained, and which were taken from elsewhere."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from coterie.records import digests
from coterie.records.versions import PACKAGE
from coterie.study.config import Study
from coterie.study.experiment import Progress, Result, run_study
from coterie.study.reuse import keys


def rounds_trained(
    study: Study, runs: Path | str, **options: Any
) -> dict[tuple[str, int], list[int]]:
    """The rounds that were trained of each cell; none of those that were not."""
    seen: dict[tuple[str, int], list[int]] = {}

    def note(p: Progress) -> None:
        # A cell that is there already is told once, without the state of a round.
        seen.setdefault((p.label, p.seed), []).append(p.t)

    run_study(study, runs=runs, progress=note, **options)
    last = study.run.rounds
    return {cell: [] if t == [last] else t for cell, t in seen.items()}


def cells_trained(study: Study, runs: Path | str, **options: Any) -> set[str]:
    """The cells of which any round was trained, as "label-seed"."""
    found = rounds_trained(study, runs, **options)
    return {f"{label}-{seed}" for (label, seed), t in found.items() if t}


def assert_same_cells(first: Result, second: Result) -> None:
    """Raises unless two runs have bitwise the same records and models."""
    for name in ("metrics", "rounds"):
        tables = [getattr(r.records, name).copy() for r in (first, second)]
        for table in tables:
            table.pop("seconds") if "seconds" in table else None
        order = ["algorithm", "seed", "round"]
        order += ["client"] if name == "metrics" else []
        tables = [t.sort_values(order).reset_index(drop=True) for t in tables]
        pd.testing.assert_frame_equal(*tables, check_exact=True, check_like=True)
    for kind in ("weights", "groups"):
        ones, others = (getattr(r.records, kind) for r in (first, second))
        assert ones.keys() == others.keys()
        for cell, snapshots in ones.items():
            for a, b in zip(snapshots, others[cell], strict=True):
                assert (a == b).all()
    for entry in first.study.algorithms:
        for seed in first.study.run.seeds:
            models = [r.models(entry.label, seed) for r in (first, second)]
            assert torch.equal(*models)


def change_code(patch, file: str, more: bytes) -> None:
    """Lets a file of the package end with more lines, for digests of code alone."""
    text, digest = (PACKAGE / file).read_bytes(), digests._digest_of
    patch.setattr(digests, "_digest_of", lambda t: digest(t + more if t == text else t))
    for name in ("_package_code", "_shared_code", "_shared_files"):
        made = getattr(keys, name).__wrapped__
        patch.setattr(keys, name, functools.cache(made))
