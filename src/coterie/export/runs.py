"""A run in its folder: scores, names and models, without its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from .. import checks
from ..checks import InputError
from ..data.preparation import Preparation
from ..models import (
    BESIDE,
    Architecture,
    layout,
    trusted_factory,
    trusted_modules,
    with_row,
)
from ..records import Folder, Records, load_records
from ..records.files import damage_error, read_json
from ..records.versions import digest_of, sources_of
from ..scores.summaries import summary
from .modules import Inputs, PreparedModel

if TYPE_CHECKING:
    import pandas as pd


class TrainedModel(NamedTuple):
    """The model of one client, and what it is made from."""

    module: nn.Module  # takes raw columns if there is a preparation
    model: nn.Module  # the module without the preparation
    client: int
    label: str
    seed: int
    architecture: Architecture
    preparation: Preparation | None
    inputs: Inputs

    def size(self) -> int:
        """The number of trained parameters."""
        return sum(layout(self.model).sizes)


@dataclass(frozen=True)
class Run:
    """A run, finished or not: its records, and the models that are finished."""

    folder: Path
    records: Records
    trust: tuple[str, ...] = ()  # modules whose models may be made

    def __repr__(self) -> str:
        labels = ", ".join(self._labels)
        return f"<Run of {self.records.study.get('name')}: {labels}; in {self.folder}>"

    def _repr_html_(self) -> str:
        """The table of algorithms, for a notebook."""
        return f"<p>{escape(repr(self))}</p>{self.table().to_html()}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, by identity; () if they have none."""
        return self.records.names

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the model's features; () if they have none."""
        return self.records.features

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels 0, 1, ...; () if they have none."""
        return self.records.classes

    def table(self) -> pd.DataFrame:
        """One row for each algorithm, on test data at the last round."""
        return summary(self.records)

    def curves(self) -> pd.DataFrame:
        """Every recorded number of every client over rounds, as one long table.

        Columns: algorithm, seed, client, name, round, metric (such as `test_accuracy`)
        and value.
        """
        return self.records.curves()

    @property
    def _labels(self) -> list[str]:
        return [str(entry["label"]) for entry in self.records.study["algorithm"]]

    @property
    def _seeds(self) -> list[int]:
        known = self.records.study.get("run", {}).get("seeds")
        return known or [int(seed) for seed in self.records.clients["seed"].unique()]

    def models_available(self) -> list[tuple[str, int]]:
        """The algorithms and seeds that have models."""
        pairs = [(label, seed) for label in self._labels for seed in self._seeds]
        return [pair for pair in pairs if Folder(self.folder).has_model_file(*pair)]

    def models(self, label: str | None = None, seed: int | None = None) -> Tensor:
        """The personal models (N, D) of an algorithm, by default the last in the study.

        Row j belongs to the j-th client that trained, in the order of
        `records.clients`.
        """
        return Folder(self.folder).models(*self._cell(label, seed))

    def newcomer_models(
        self, label: str | None = None, seed: int | None = None
    ) -> Tensor:
        """The models (M, D) of newcomers, in the order of `records.newcomers`."""
        return Folder(self.folder).models(*self._cell(label, seed), of="newcomers")

    def model(
        self, client: int | str, label: str | None = None, seed: int | None = None
    ) -> nn.Module:
        """The model of one client, ready to use, also for a client that joined later.

        If features were prepared from raw columns, the model includes the preparation.
        It then takes raw columns (B, C): numbers, codes of categories, NaN for gaps.

        Args:
            client: the name of the client, or its position among all clients.
            label: the label of the algorithm; None: the last in the study.
            seed: None: the first.
        """
        return self.trained_model(client, label, seed).module

    def predict(
        self,
        frame: pd.DataFrame,
        client: int | str | None = None,
        label: str | None = None,
        seed: int | None = None,
    ) -> pd.DataFrame:
        """The predictions of models for the rows of a frame: see `predict_frame`.

        Args:
            frame: a table with the columns on which the models were trained.
            client: the model's client; None: each row names its client.
            label: the label of the algorithm; None: the last in the study.
            seed: None: the first.
        """
        from .frames import predict_frame

        return predict_frame(self, frame, client, label, seed)

    def trained_model(
        self, client: int | str, label: str | None = None, seed: int | None = None
    ) -> TrainedModel:
        """The model of one client with what it is made from: see `model`."""
        label, seed = self._cell(label, seed)
        client = self._identity(client)
        row, folder = self._row(client, label, seed), Folder(self.folder)
        about = folder.model_description(seed)
        made = self._architecture(about, seed)
        make = trusted_factory(made.name, self.trust, self.folder)
        if made.size(make) not in (None, row.numel()):
            raise damage_error(folder.models_file(label, seed), ValueError())
        module = made.rebuild(about, make)
        self._refuse_changed(made.name)
        if row.numel() != sum(layout(module).sizes):
            raise damage_error(folder.models_file(label, seed), ValueError())
        model, how = with_row(module, row).eval(), None
        whole = model
        if about["prepared"]:
            how = self._preparation(client, seed, made.shape)
            whole = PreparedModel(how, model, row.dtype).eval()
        inputs = Inputs.of(made, how, about["whole"])
        return TrainedModel(whole, model, client, label, seed, made, how, inputs)

    def clients_of(
        self, label: str | None = None, seed: int | None = None
    ) -> list[int]:
        """The clients that have a model of an algorithm, newcomers last."""
        label, seed = self._cell(label, seed)
        table, late = self.records.clients, self.records.newcomers
        clients = table.loc[table["seed"] == seed, "client"].tolist()
        if not late.empty:
            mine = (late["algorithm"] == label) & (late["seed"] == seed)
            clients += late.loc[mine, "client"].tolist()
        return clients

    def _cell(self, label: str | None, seed: int | None) -> tuple[str, int]:
        labels = self._labels
        label = checks.one_of("label", labels[-1] if label is None else label, labels)
        seed = self._seeds[0] if seed is None else seed
        if not Folder(self.folder).has_model_file(label, seed):
            raise InputError(
                f"{self.folder} has no models of {label!r} with seed {seed}: "
                f"{_available_text(self.models_available())}."
            )
        return label, seed

    def _identity(self, client: int | str) -> int:
        if isinstance(client, str):
            return self.records.client_named(client)
        records = self.records
        known = [*records.clients["client"], *records.newcomers.get("client", [])]
        most = max(map(int, known))
        return checks.integer("client", client, at_least=0, at_most=most)

    def _row(self, client: int, label: str, seed: int) -> Tensor:
        """The parameters (D,) of a client, which trained or joined later."""
        table, rows = self.records.clients, self.models(label, seed)
        clients = table.loc[table["seed"] == seed, "client"].tolist()
        late = self.records.newcomers
        if client not in clients and not late.empty:
            mine = (late["algorithm"] == label) & (late["seed"] == seed)
            clients = late.loc[mine, "client"].tolist()
            rows = self.newcomer_models(label, seed) if clients else rows
        if client not in clients:
            raise InputError(
                f"{self.records.name_of(client)} has no model of {label!r} with seed "
                f"{seed} before the run ends, because it is a newcomer."
            )
        if rows.dim() != 2 or len(rows) != len(clients):
            raise damage_error(
                Folder(self.folder).models_file(label, seed), ValueError()
            )
        return rows[clients.index(client)]

    def _architecture(self, about: dict[str, Any], seed: int) -> Architecture:
        model = {"name": "mlp", **self.records.study.get("model", {})}
        options = {k: v for k, v in model.items() if k not in (*BESIDE, "name")}
        dtype = str(self.records.study.get("run", {}).get("dtype", "float32"))
        checks.one_of("run.dtype", dtype, ("float32", "float64"))
        shape = tuple(about["shape"])
        name, outputs = str(model["name"]), about["outputs"]
        return Architecture(name, options, shape, outputs, dtype, seed)

    def _refuse_changed(self, name: str) -> None:
        """Refuses a module of the user if it changed after the run read it."""
        path = self.folder / "read.json"
        read = read_json(path) if ":" in name and path.exists() else {}
        for module, file in sources_of(name.partition(":")[0]).items() if read else ():
            kept = read.get(f"the module {module}")
            if kept not in (None, digest_of([file])):
                raise InputError(
                    f"the module {module} has changed since {self.folder} was made, so "
                    f"{name!r} may be another model: restore the old version."
                )

    def _preparation(self, client: int, seed: int, shape: Sequence[int]) -> Preparation:
        path = self.folder / f"preparation-{seed}.json"
        every = Folder(self.folder).preparations(seed)
        if every is None:
            raise InputError(
                f"{self.folder} does not say how features are prepared: {path.name} is "
                "missing; run its study again, which adds the file."
            )
        if client >= len(every.fill) or [len(every.names)] != list(shape):
            raise damage_error(path, ValueError())
        return every.of(client)


def load(folder: Path | str, *, trust: Sequence[str] = ()) -> Run:
    """A run, finished or not, from its folder alone.

    Args:
        folder: the folder of the run. Code that it names is not run, except models of
            coterie.
        trust: modules whose models may be made, as in `trust=["mymodels"]`.
    """
    return Run(Path(folder), load_records(folder), trusted_modules(trust))


def _available_text(pairs: Sequence[tuple[str, int]]) -> str:
    """The algorithms and seeds that have models, in words."""
    if not pairs:
        return "the run did not finish, and no algorithm has models yet"
    seeds: dict[str, list[str]] = {}
    for label, seed in pairs:
        seeds.setdefault(label, []).append(str(seed))
    each = [f"{a!r} (seed {', '.join(numbers)})" for a, numbers in seeds.items()]
    return f"it has those of {', '.join(each)}"
