"""Studies that are refused, stopped on the way, or run by several processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.conformance.divided import run_divided
from coterie.study import loops
from coterie.study.config import Study, study_of
from coterie.study.experiment import Progress, Result, run_study
from coterie.types import Algorithm


def linear_tables(clients: int, **run: Any) -> dict[str, Any]:
    """A linear study of four rounds, evaluated and saved after each of them."""
    settings = {"rounds": 4, "batch_size": 4, "dtype": "float64"}
    every = {"evaluate_every": 1, "checkpoint_seconds": 0.0}
    data = {"name": "linear", "clients": clients, "dimension": 3, "samples": 24}
    return {
        "name": "guarded",
        "data": data,
        "model": {"name": "linear", "bias": False},
        "run": settings | every | run,
    }


def refused(
    study: Study | dict[str, Any], folder: Path, match: str | None = None
) -> str:
    """The sentence with which a study is refused; raises if it leaves anything.

    Args:
        study: or its tables.
        folder: below which it would be run.
        match: what the sentence says.
    """
    with pytest.raises(InputError, match=match) as refusal:
        made = study_of(study) if isinstance(study, dict) else study
        run_study(made, runs=folder / "runs")
    assert not (folder / "runs").exists()
    message = str(refusal.value)
    assert message.endswith((".", "?", ".)")) and "\n" not in message
    return message


def stopped(study: Study, when: Callable[[Progress], bool], **options: Any) -> None:
    """Runs a study until somebody stops it, at the first progress that is meant."""

    def stop(progress: Progress) -> None:
        if when(progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, progress=stop, **options)


def together(study: Study, processes: int, runs: Path, **options: Any) -> list[Result]:
    """What each of several processes has of a study; here they are threads."""

    def run(group):
        return run_study(study, runs=runs, group=group, **options)

    return run_divided(run, processes)


def spoilt(client: int, value: float, first: int) -> Callable[..., Algorithm]:
    """Local training in which a client's model has this value from a round on."""

    def factory(*, lr: float = 0.1) -> Algorithm:
        good = local(lr=lr)

        def step(state, oracle, rng):
            new, info = good.step(state, oracle, rng)
            here = torch.arange(len(oracle.present))[oracle.mine] == client
            x = torch.where(here[:, None] & (new.t >= first), value, new.x)
            return new._replace(x=x), info

        return good._replace(step=step)

    return factory


def refuse_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever trains from now on, fails."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("training began again")

    monkeypatch.setattr(loops, "run_rounds", refuse)
