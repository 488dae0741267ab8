"""A rehearsal at one site: one round of every method on made-up rows, for all members.

The rows have the columns and the words of the site's own table. Every value is drawn
from its own column at random and apart from the others, so no row is a real one.
Nothing leaves the machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from ...data.federation import Table
from ...seeds import generator
from ...study.experiment import run_study
from .joining import Joining, study_at

_ROWS = 60  # of each member; a study needs enough of them for every part


def made_up(table: Table, names: tuple[str, ...], seed: int = 0) -> Table:
    """A table of all members with made-up rows.

    Args:
        table: of one site.
        names: of all members.
        seed: names the draw.
    """
    rng = generator(seed, "rehearsal")
    count, total = len(table.targets), _ROWS * len(names)
    flat = table.features.flatten(1)
    drawn = torch.randint(count, (total, flat.shape[1]), generator=rng)
    features = flat.gather(0, drawn).reshape(total, *table.features.shape[1:])
    targets = table.targets[torch.randint(count, (total,), generator=rng)]
    return table._replace(
        features=features,
        targets=targets,
        group=torch.arange(len(names)).repeat_interleave(_ROWS),
        is_test=None,
        files=(),
        names=names,
    )


def rehearse(joining: Joining) -> Iterator[str]:
    """Trains one round of every method; gives a line about each of them.

    Args:
        joining: the checked files of a site.
    """
    study, table = study_at(joining)
    run = replace(
        study.run, rounds=1, seeds=study.run.seeds[:1], log=(), baselines=False
    )
    made = replace(study, run=run, given=made_up(table, joining.roster.names))
    before = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = run_study(made, runs=Path(folder), notice=lambda line: None)
        rounds = found.records.rounds
    took = time.monotonic() - before
    last = rounds[rounds["round"] == 1].set_index("algorithm")
    for label in last.index:
        share = float(last.loc[label, "bytes"]) / len(joining.roster.members)
        yield f"{label}: one round, and {share:,.0f} bytes for each member"
    rows = f"{_ROWS} made-up rows for each member"
    yield f"everything took {took:.1f} seconds, with {rows}"
