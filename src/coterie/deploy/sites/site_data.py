"""A site's own data, and what all sites must know about each other's.

A site reads its own file as the study says. Then the sites agree on columns, on the
words of categories and on classes. A site's parts and random streams depend on its own
rows, its name and the seed, so they are the same as in a simulation with all files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...checks import InputError, suggestion
from ...data.federation import Federation, Part, Table
from ...data.files import in_order
from ...data.files import table as read_table
from ...data.looking.formats import TextFormat
from ...data.looking.sources import BY_FILE, holds_arrays, read_source
from ...data.splits import divide
from ...models import OBJECTIVES, outputs_for
from ...study import Study


class ColumnTold(NamedTuple):
    """What a site tells about one of its columns."""

    name: str
    words: tuple[str, ...] | None  # of categories; None: numbers
    truth: bool
    date: str
    gaps: tuple[str, ...]


def read_site_table(data: dict[str, Any], path: str | Path, name: str) -> Table:
    """The table in a site's own file.

    Args:
        data: the table [data] of the study.
        path: of the site's file.
        name: of the site, which is its client.
    """
    options = {k: v for k, v in data.items() if k not in ("name", "path")}
    if "target" not in options:
        raise InputError(
            "a study between sites must say `data.target`, because no site can see "
            "all rows to find it."
        )
    if holds_arrays(path):
        raise InputError(f"a site needs a table with columns, got {Path(path).name}.")
    asked = TextFormat(*(options.get(key, "") for key in TextFormat._fields))
    source = read_source(path, asked)
    frame, client = source.join(), str(options.get("client", "client"))
    if client in frame and client != BY_FILE:
        others = set(frame[client].dropna().astype(str)) - {name}
        if others:
            raise InputError(
                f"column {client!r} of {source.label.name} must hold {name!r} in every "
                f"row, but it also holds {in_order(others)[0]!r}."
            )
    frame = frame.drop(columns=[BY_FILE], errors="ignore").assign(**{client: name})
    own = source._replace(frames=(frame,), files=source.files[:1])
    return read_table(own, **{**options, "client": client})


def description(table: Table) -> dict[str, Any]:
    """What a site tells the others about its table: no values, but words."""
    columns = () if table.schema is None else table.schema.columns
    return {
        "task": table.task,
        "classes": list(table.classes),
        "highest": int(table.targets.max()) if not table.classes else -1,
        "shape": list(table.rows.shape[1:]),
        "columns": [
            [
                c.name,
                None if c.categories is None else list(c.categories),
                c.truth,
                c.date,
                list(c.gaps),
            ]
            for c in columns
        ],
    }


def agreed_table(table: Table, told: Sequence[Any], names: Sequence[str]) -> Table:
    """This site's table, with the columns, words and classes of all sites.

    Args:
        table: of this site.
        told: the descriptions of all sites, by rank.
        names: of the sites.

    Raises:
        InputError: if a site has other columns, another kind of column or another task.
    """
    _refuse_other_columns(told, names)
    table = _with_classes(table, told, names)
    if table.schema is None:
        return table
    columns, features = [], table.features.clone()
    for j, column in enumerate(table.schema.columns):
        each = [ColumnTold(*one["columns"][j]) for one in told]
        words = column.categories
        if words is not None:
            every = in_order({word for site in each for word in site.words or ()})
            features[:, j] = _recode(features[:, j], words, every)
            words = tuple(every)
        gaps = tuple(dict.fromkeys(word for site in each for word in site.gaps))
        truth = all(site.truth for site in each)
        columns.append(column._replace(categories=words, truth=truth, gaps=gaps))
    schema = table.schema._replace(columns=tuple(columns))
    return table._replace(features=features, schema=schema)


def _recode(codes: Tensor, old: Sequence[str], new: Sequence[str]) -> Tensor:
    """Codes of words in the old list as codes in the new list; NaN stays."""
    place = {word: code for code, word in enumerate(new)}
    moved = codes.new_tensor([*(place[word] for word in old), torch.nan])
    return moved[torch.where(codes.isnan(), len(old), codes).long()]


def _refuse_other_columns(told: Sequence[Any], names: Sequence[str]) -> None:
    """Refuses sites whose columns differ; the error names the site and the column."""
    first = told[0]
    known = [column[0] for column in first["columns"]]
    for rank, one in enumerate(told):
        own = [column[0] for column in one["columns"]]
        for mine, theirs, who, other in (
            (own, known, names[rank], names[0]),
            (known, own, names[0], names[rank]),
        ):
            more = next((name for name in mine if name not in theirs), None)
            if more is not None:
                raise InputError(
                    f"column {more!r} is at {who}, but not at {other}: give columns "
                    "the same name at all sites, or leave this one out by `data.drop`."
                    f"{suggestion(more, theirs)}"
                )
        for a, b in zip(first["columns"], one["columns"], strict=True):
            if kind_of(a) != kind_of(b):
                raise InputError(
                    f"column {a[0]!r} holds {kind_of(a)} at {names[0]}, but "
                    f"{kind_of(b)} at {names[rank]}: correct it, or list it in "
                    "`data.categories`."
                )


def kind_of(column: Sequence[Any]) -> str:
    """What a column holds, in words, as a site tells it."""
    told = ColumnTold(*column)
    if told.date:
        return f"dates written {told.date}"
    return "numbers" if told.words is None else "words"


def _with_classes(table: Table, told: Sequence[Any], names: Sequence[str]) -> Table:
    """The table with the classes of all sites."""
    for rank, one in enumerate(told):
        differs = one["task"] != told[0]["task"] or one["shape"] != told[0]["shape"]
        if differs or bool(one["classes"]) != bool(told[0]["classes"]):
            raise InputError(
                f"the task is {told[0]['task']} at {names[0]}, but {one['task']} at "
                f"{names[rank]}: say `data.task` in the study."
            )
    if not OBJECTIVES[table.task].labelled:
        return table
    if not table.classes:
        highest = max(one["highest"] for one in told)
        return table._replace(outputs=outputs_for(table.task, highest + 1))
    every = in_order({word for one in told for word in one["classes"]})
    if table.task == "binary" and len(every) > 2:
        raise InputError(
            f"the target has more than two classes at all sites: {', '.join(every)}."
        )
    places = torch.tensor([every.index(word) for word in table.classes])
    return table._replace(
        targets=places[table.targets],
        classes=tuple(every),
        outputs=outputs_for(table.task, len(every)),
    )


def own_federation(
    study: Study, table: Table, seed: int, names: Sequence[str], rank: int
) -> Federation:
    """The federation with this site as its only client, under its own identity.

    Features and targets are not prepared yet: the sites do that together.
    """
    split = {"seed": seed, "min_classes": 1, **study.split}
    name = split.pop("name")
    if name != "natural" or "clients" in split:
        raise InputError(
            "between sites, every site is a client: `split.name` must be 'natural', "
            "without `clients`."
        )
    found = divide(table, name, **split)
    return replace(
        found,
        targets=table.targets,
        preparations=None,
        clients=torch.tensor([rank]),
        names=tuple(names),
        everybody=len(names),
    )


def sizes_of(federation: Federation) -> list[int]:
    """The numbers of samples that a site tells: to train, validate and test."""
    return [int(federation.part(p).size[0]) for p in ("train", "validation", "test")]


def with_all_clients(own: Federation, sizes: Sequence[Sequence[int]]) -> Federation:
    """The federation of all sites, with the sizes of all and the samples of one."""
    columns = torch.tensor(sizes).T

    def part(part: Part, size: Tensor) -> Part:
        return Part(part.index, torch.zeros_like(size), size)

    return replace(
        own,
        clients=torch.arange(len(sizes)),
        train=part(own.train, columns[0]),
        validation=part(own.validation, columns[1]),
        test=part(own.test, columns[2]),
    )
