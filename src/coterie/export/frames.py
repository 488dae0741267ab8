"""Models of a run on the rows of a pandas frame, without files."""

from __future__ import annotations

import warnings
from collections.abc import Hashable

import pandas as pd

from ..checks import InputError
from ..data.given import FRAME, cells_of_frame
from .folders import about_model
from .predictions import Exported, Predictions, predict_cells
from .runs import Run


def predict_frame(
    run: Run,
    frame: pd.DataFrame,
    client: int | str | None = None,
    label: str | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """What the models of a run predict: the rows of the frame, in its order and index.

    What is odd about rows is a warning: unknown categories, and numbers that training
    was nowhere near.

    Args:
        run: whose models.
        frame: has the columns that the models were trained on.
        client: whose model; None: in each row that of the client that its column names.
        label: of the algorithm; None: the last listed.
        seed: None: the first.
    """
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"`frame` must be a pandas DataFrame, got {type(frame).__name__}."
        )
    cells = cells_of_frame(frame)
    clients: dict[Hashable, pd.DataFrame] = {client: cells}
    if client is None:
        column = str(run.records.study["data"].get("client", "client"))
        if column not in cells:
            raise InputError(
                f"`client` must say whose model to use, as the frame has no column "
                f"{column!r} that names clients, got None."
            )
        clients = dict(list(cells.groupby(cells[column].astype(str))))
    found = [
        _predicted(run, str(c) if client is None else client, some, label, seed)
        for c, some in clients.items()
    ]
    for note in (note for one in found for note in one.notes):
        warnings.warn(note, stacklevel=4)  # of who calls a method of results
    table = pd.concat([one.table for one in found]).sort_values(
        "row", ignore_index=True
    )
    return table.drop(columns="row").set_axis(frame.index, axis=0)


def _predicted(
    run: Run,
    client: int | str,
    cells: pd.DataFrame,
    label: str | None,
    seed: int | None,
) -> Predictions:
    """A line for each row, by the model of one client."""
    trained = run.trained(client, label, seed)
    how = trained.preparation
    if how is None:
        raise InputError(
            "the models of this run take tensors, not the columns of a frame: use "
            "`model(client)`."
        )
    about = about_model(run.records, trained, {})
    return predict_cells(Exported(trained.module, about, how), how, cells, FRAME)
