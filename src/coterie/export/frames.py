"""Models of a run on the rows of a pandas frame, without files."""

from __future__ import annotations

import warnings
from collections.abc import Hashable

import pandas as pd

from ..checks import InputError
from ..data.given import FRAME, cells_of_frame
from .folders import describe_model
from .predictions import ExportedModel, Predictions, predict_cells
from .runs import Run


def predict_frame(
    run: Run,
    frame: pd.DataFrame,
    client: int | str | None = None,
    label: str | None = None,
    seed: int | None = None,
) -> pd.DataFrame:
    """The predictions of a run's models, in the order and with the index of the frame.

    See `Run.predict` for the arguments. Warnings say which columns have unknown
    categories, or numbers far from training data.
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
                f"`client` must be given, because the frame has no column {column!r} "
                "that names clients."
            )
        clients = dict(list(cells.groupby(cells[column].astype(str))))
    found = [
        _predict_client(run, str(c) if client is None else client, some, label, seed)
        for c, some in clients.items()
    ]
    for note in (note for one in found for note in one.notes):
        warnings.warn(note, stacklevel=4)  # points to the call of `Run.predict`
    table = pd.concat([one.table for one in found]).sort_values(
        "row", ignore_index=True
    )
    return table.drop(columns="row").set_axis(frame.index, axis=0)


def _predict_client(
    run: Run,
    client: int | str,
    cells: pd.DataFrame,
    label: str | None,
    seed: int | None,
) -> Predictions:
    """One prediction for each row, by the model of one client."""
    trained = run.trained_model(client, label, seed)
    how = trained.preparation
    if how is None:
        raise InputError(
            "the models of this run take tensors and not the columns of a frame: use "
            "`model(client)`."
        )
    about = describe_model(run.records, trained, {})
    return predict_cells(ExportedModel(trained.module, about, how), how, cells, FRAME)
