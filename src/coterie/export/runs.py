"""A run as its folder has it: scores, names and models, without its data."""

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
from ..records.files import damaged, read_json
from ..records.versions import digest_of, sources_of
from ..scores.summaries import summary
from .modules import Inputs, Prepared

if TYPE_CHECKING:
    import pandas as pd


class Trained(NamedTuple):
    """The model of one client, and what it is made from."""

    module: nn.Module  # takes raw columns where there is a preparation
    model: nn.Module  # without it
    client: int
    label: str
    seed: int
    architecture: Architecture
    preparation: Preparation | None
    inputs: Inputs

    def size(self) -> int:
        """How many numbers were trained."""
        return sum(layout(self.model).sizes)


@dataclass(frozen=True)
class Run:
    """A run that was begun: records, and the models of what has ended."""

    folder: Path
    records: Records
    trust: tuple[str, ...] = ()  # modules of models that may be imported

    def __repr__(self) -> str:
        labels = ", ".join(self._labels)
        return f"<Run of {self.records.study.get('name')}: {labels}; in {self.folder}>"

    def _repr_html_(self) -> str:
        """The table of algorithms, for a notebook."""
        return f"<p>{escape(repr(self))}</p>{self.table().to_html()}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the clients, by identity; () where they have none."""
        return self.records.names

    @property
    def features(self) -> tuple[str, ...]:
        """Their names, as the model has them, where they have some."""
        return self.records.features

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels 0, 1, ..., where they have some."""
        return self.records.classes

    def table(self) -> pd.DataFrame:
        """One row for each algorithm, on test data at the last round."""
        return summary(self.records)

    @property
    def _labels(self) -> list[str]:
        return [str(entry["label"]) for entry in self.records.study["algorithm"]]

    @property
    def _seeds(self) -> list[int]:
        known = self.records.study.get("run", {}).get("seeds")
        return known or [int(seed) for seed in self.records.clients["seed"].unique()]

    def ended(self) -> list[tuple[str, int]]:
        """The algorithms and seeds that have models."""
        pairs = [(label, seed) for label in self._labels for seed in self._seeds]
        return [pair for pair in pairs if Folder(self.folder).kept_models(*pair)]

    def models(self, label: str | None = None, seed: int | None = None) -> Tensor:
        """The personal models (N, D) of an algorithm, by default the last listed.

        Row j is that of the j-th client who trained, in the order of `records.clients`.
        """
        return Folder(self.folder).models(*self._cell(label, seed))

    def newcomer_models(
        self, label: str | None = None, seed: int | None = None
    ) -> Tensor:
        """The models (M, D) that newcomers got, in the order of `records.newcomers`."""
        return Folder(self.folder).models(*self._cell(label, seed), of="newcomers")

    def model(
        self, client: int | str, label: str | None = None, seed: int | None = None
    ) -> nn.Module:
        """The model of one client, who trained or joined later, ready to use.

        Where features were prepared from raw columns, that is a part of it, and it
        takes raw columns (B, C): numbers, codes of categories, NaN for gaps.

        Args:
            client: its name, or its position among all clients.
            label: of the algorithm; None: the last listed.
            seed: None: the first.
        """
        return self.trained(client, label, seed).module

    def predict(
        self,
        frame: pd.DataFrame,
        client: int | str | None = None,
        label: str | None = None,
        seed: int | None = None,
    ) -> pd.DataFrame:
        """What models predict for the rows of a frame: see `predict_frame`.

        Args:
            frame: has the columns that the models were trained on.
            client: whose model; None: in each row that of the client that it names.
            label: of the algorithm; None: the last listed.
            seed: None: the first.
        """
        from .frames import predict_frame

        return predict_frame(self, frame, client, label, seed)

    def trained(
        self, client: int | str, label: str | None = None, seed: int | None = None
    ) -> Trained:
        """The same with what the model is made from."""
        label, seed = self._cell(label, seed)
        client = self._identity(client)
        row, folder = self._row(client, label, seed), Folder(self.folder)
        about = folder.described_model(seed)
        made = self._architecture(about, seed)
        make = trusted_factory(made.name, self.trust, self.folder)
        if made.size(make) not in (None, row.numel()):
            raise damaged(folder.models_file(label, seed), ValueError())
        module = made.rebuild(about, make)
        self._refuse_changed(made.name)
        if row.numel() != sum(layout(module).sizes):
            raise damaged(folder.models_file(label, seed), ValueError())
        model, how = with_row(module, row).eval(), None
        whole = model
        if about["prepared"]:
            how = self._preparation(client, seed, made.shape)
            whole = Prepared(how, model, row.dtype).eval()
        inputs = Inputs.of(made, how, about["whole"])
        return Trained(whole, model, client, label, seed, made, how, inputs)

    def clients_of(
        self, label: str | None = None, seed: int | None = None
    ) -> list[int]:
        """Who has a model of an algorithm: those who trained, and then who joined."""
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
        if not Folder(self.folder).kept_models(label, seed):
            raise InputError(
                f"{self.folder} has no models of {label!r} with seed {seed}: "
                f"{_existing(self.ended())}."
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
        """The parameters (D,) of a client, who trained or joined later."""
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
                f"{seed}: it joins when the run ends."
            )
        if rows.dim() != 2 or len(rows) != len(clients):
            raise damaged(Folder(self.folder).models_file(label, seed), ValueError())
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
        """Refuses a module of one's own that is not as it was when the run read it."""
        path = self.folder / "read.json"
        read = read_json(path) if ":" in name and path.exists() else {}
        for module, file in sources_of(name.partition(":")[0]).items() if read else ():
            kept = read.get(f"the module {module}")
            if kept not in (None, digest_of([file])):
                raise InputError(
                    f"the module {module} has changed since {self.folder} was made, so "
                    f"that {name!r} may be another model: bring that version back."
                )

    def _preparation(self, client: int, seed: int, shape: Sequence[int]) -> Preparation:
        path = self.folder / f"preparation-{seed}.json"
        every = Folder(self.folder).preparations(seed)
        if every is None:
            raise InputError(
                f"{self.folder} does not say how features are prepared: it has no "
                f"{path.name}; run its study again, which adds that."
            )
        if client >= len(every.fill) or [len(every.names)] != list(shape):
            raise damaged(path, ValueError())
        return every.of(client)


def load(folder: Path | str, *, trust: Sequence[str] = ()) -> Run:
    """A run that has ended, or was begun, from its folder alone.

    Args:
        folder: of the run. Code that it names is not run, models of ours aside.
        trust: modules whose models may be made, as in `trust=["mymodels"]`.

    Raises:
        InputError: where it is no such folder, or a file of it is damaged.
    """
    return Run(Path(folder), load_records(folder), trusted_modules(trust))


def _existing(pairs: Sequence[tuple[str, int]]) -> str:
    """What has models, in words."""
    if not pairs:
        return "the run did not finish, and no algorithm has models yet"
    seeds: dict[str, list[str]] = {}
    for label, seed in pairs:
        seeds.setdefault(label, []).append(str(seed))
    each = [f"{a!r} (seed {', '.join(numbers)})" for a, numbers in seeds.items()]
    return f"there are those of {', '.join(each)}"
