"""Sinks, which receive a run's numbers while it goes on: TensorBoard, MLflow, W&B.

We call a sink when an algorithm and seed begin, at every evaluation with its numbers,
and at the end. The results and files of a run do not depend on its sinks.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..checks import InputError
from .cells import Cell
from .files import file_name


class Sink(Protocol):
    """A receiver of numbers, of one algorithm and seed after the other."""

    def begin(self, study: Mapping[str, Any], label: str, seed: int) -> None:
        """An algorithm with a seed begins or continues; `study` has all settings."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Receives numbers that were measured after round `step`."""

    def end(self) -> None:
        """This algorithm and seed have ended."""


class TensorBoard:
    """Event files in <run folder>/tensorboard, one folder for each cell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"

    def begin(self, study: Mapping[str, Any], label: str, seed: int) -> None:
        """Opens the event file of the cell."""
        writers = importlib.import_module("torch.utils.tensorboard")
        place = self._folder / file_name(label, seed)
        self._writer = writers.SummaryWriter(str(place))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self) -> None:
        """Closes the file."""
        self._writer.close()


class MLflow:
    """One run for each cell, in an experiment with the study's name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, study: Mapping[str, Any], label: str, seed: int) -> None:
        """Makes the run, and the experiment if there is none."""
        self._client = importlib.import_module("mlflow").MlflowClient()
        known = self._client.get_experiment_by_name(study["name"])
        place = (
            self._client.create_experiment(study["name"])
            if known is None
            else known.experiment_id
        )
        run = self._client.create_run(
            place,
            run_name=file_name(label, seed),
            tags={"coterie.folder": str(self._folder)},
        )
        self._run = run.info.run_id
        for name, value in {**_options_of(study, label), "seed": seed}.items():
            self._client.log_param(self._run, name, value)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Logs each number with its round."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def end(self) -> None:
        """Ends the run."""
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """One run for each cell, in a project with the study's name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, study: Mapping[str, Any], label: str, seed: int) -> None:
        """Makes the run, or continues the one of this folder and cell."""
        name = file_name(label, seed)
        self._run = importlib.import_module("wandb").init(
            project=str(study["name"]),
            group=self._folder.name,
            name=name,
            id=f"{self._folder.name}-{name}"[-64:],
            resume="allow",
            dir=str(self._folder),
            config={**_options_of(study, label), "seed": seed},
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Logs each number with its round."""
        self._run.log(dict(values), step=step)

    def end(self) -> None:
        """Ends the run."""
        self._run.finish()


SINKS: dict[str, tuple[Callable[[Path], Sink], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (MLflow, "mlflow"),
    "wandb": (WeightsAndBiases, "wandb"),
}
"""Name in `run.log` -> its sink, and the package that the sink needs."""


def refuse_absent(names: Sequence[str]) -> None:
    """Refuses sinks whose packages are not installed."""
    for name in names:
        package = SINKS[name][1]
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"`run.log` {name} needs the package {package}, which is not "
                f"installed: pip install {package}."
            )


class Log:
    """The sinks of a study; one that fails is dropped with a notice."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        study: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._sinks = {name: SINKS[name][0](folder) for name in names}
        self._study, self._say = study, say

    @contextlib.contextmanager
    def of(self, label: str, seed: int) -> Iterator[Callable[[Cell], None]]:
        """A context with the function to call with the cell after each evaluation.

        Sinks begin at the first call, so a cell that had already ended is not sent to
        them.
        """
        begun = False

        def write(cell: Cell) -> None:
            nonlocal begun
            if not begun:
                self._tell(lambda sink: sink.begin(self._study, label, seed))
                begun = True
            values = last_numbers(cell)
            self._tell(lambda sink: sink.scalars(cell.t, values))

        try:
            yield write
        finally:
            if begun:
                self._tell(lambda sink: sink.end())

    def _tell(self, call: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                call(sink)
            except Exception as error:  # from other packages and services
                del self._sinks[name]
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                self._say(
                    f"`run.log` {name} failed and gets no more numbers; the run goes "
                    f"on: {reason.rstrip('.')}."
                )


def last_numbers(cell: Cell) -> dict[str, float]:
    """Means over clients at the last evaluation, and the costs so far."""
    means = {name: float(v.double().mean()) for name, v in cell.metrics[-1].items()}
    return means | {k: float(v) for k, v in cell.rounds[-1].items() if k != "round"}


def _options_of(study: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The options of an algorithm of a study."""
    return next(e for e in study["algorithm"] if e["label"] == label)
