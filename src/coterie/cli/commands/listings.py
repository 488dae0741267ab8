"""The command `list`: what a study can name, with options and their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from ...algorithms import ALGORITHMS, GROUPS
from ...checks import InputError, brief, parameters_of, suggestion
from ...conformance import faces_of
from ...data.datasets import DATASETS
from ...data.splits import SPLITS
from ...engine import SERVERS
from ...graphs.families import GRAPHS
from ...models import LOSSES, MEASURES, MODELS, OfClient
from ...study import OPTIMISERS, RECIPES, ingredients_of
from ..completion import kinds
from ..tables import print_json
from ..terminal import out
from .options import Json


class Item(NamedTuple):
    """Something that a study can name."""

    name: str
    text: str  # what it is
    options: dict[str, Any]  # with their defaults
    required: list[str]  # options without a default
    ingredients: dict[str, str]  # of an algorithm, with their default recipes
    reference: str = ""
    group: str = ""  # of an algorithm
    goes_by: tuple[str, ...] = ()  # of an algorithm: rounds, time
    used_by: tuple[str, ...] = ()  # of an ingredient: algorithms


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="One of algorithms, ingredients, datasets, splits, models, graphs, "
            "measures, losses, optimizers or servers; without it, lists all.",
            autocompletion=kinds,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """List what a study can name, with options and their defaults."""
    if what and what not in KINDS:
        only = f"only {', '.join(KINDS)}.{suggestion(what, KINDS)}"
        raise InputError(f"`coterie list` cannot list {brief(what)}, {only}")
    known = {kind: KINDS[kind]() for kind in ([what] if what else KINDS)}
    if as_json:
        of = {kind: [item._asdict() for item in some] for kind, some in known.items()}
        return print_json(of)
    for title, items in known.items():
        out.print(_listing(title, items))


def _algorithms() -> list[Item]:
    """The algorithms, group by group."""
    of = {item.name: item for item in _items(ALGORITHMS)}
    return [
        of[name]._replace(
            reference=reference_of(ALGORITHMS[name]),
            group=group.title,
            ingredients=_default_recipes(ALGORITHMS[name]),
            goes_by=faces_of(ALGORITHMS[name]),
        )
        for group in GROUPS
        for name in group.methods
    ]


def _ingredients() -> list[Item]:
    taken = {
        label: _default_recipes(factory)
        for label, factory in sorted(ALGORITHMS.items())
    }
    return [
        Item(
            name,
            " ".join((inspect.getdoc(recipe) or "").split()),
            {name: default},
            [],
            {},
            used_by=tuple(label for label, some in taken.items() if name in some),
        )
        for name, (recipe, default) in sorted(RECIPES.items())
    ]


def _measures() -> list[Item]:
    return _items(
        {
            name: of.measure if isinstance(of, OfClient) else of
            for name, (of, _, _) in MEASURES.items()
        }
    )


def _servers() -> list[Item]:
    """Server optimisers, with the keys that their options have in a study."""
    return [
        item._replace(options={f"server_{k}": v for k, v in item.options.items()})
        for item in _items(SERVERS)
    ]


KINDS: dict[str, Callable[[], list[Item]]] = {
    "algorithms": _algorithms,
    "ingredients": _ingredients,
    "datasets": lambda: _items(DATASETS, hidden=0),
    "splits": lambda: _items(SPLITS),
    "models": lambda: _items(MODELS),
    "graphs": lambda: _items(GRAPHS),
    "measures": _measures,
    "losses": lambda: _items({name: loss.make for name, loss in LOSSES.items()}),
    "optimizers": lambda: _items(OPTIMISERS),
    "servers": _servers,
}
"""Kind of thing -> the function that lists its items."""


def _items(
    registry: dict[str, Callable[..., Any]], *, hidden: int | None = None
) -> list[Item]:
    """The items of a registry, without the first `hidden` parameters of each."""
    found = []
    for name, function in sorted(registry.items()):
        first = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        options = parameters_of(function, ingredients=hidden).values()
        given = {p.name: p.default for p in options if p.default is not p.empty}
        needed = [p.name for p in options if p.default is p.empty]
        found.append(Item(name, first, given, needed, {}))
    return found


def _default_recipes(factory: Callable[..., Any]) -> dict[str, str]:
    """The ingredients of an algorithm, with their default recipes."""
    return {name: RECIPES[name][1] for name in ingredients_of(factory)}


def reference_of(function: Callable[..., Any]) -> str:
    """What the docstring of the function's module names under References."""
    text = inspect.getdoc(inspect.getmodule(function)) or ""
    _, _, rest = text.partition("References:\n")
    return " ".join(line.strip() for line in rest.partition("\n\n")[0].splitlines())


def _listing(title: str, items: list[Item]) -> Table:
    """The items as a table for the terminal, in which no name is cut."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("name", no_wrap=True)
    about = "what it is, and its options with their defaults"
    table.add_column(about, overflow="fold")
    if title != "algorithms":
        for item in items:
            table.add_row(item.name, _text(item))
        return table
    for group in GROUPS:
        also = f" See also {', '.join(group.also)}." if group.also else ""
        table.add_row(group.title, group.about + also, style="bold", end_section=True)
        for item in items:
            if item.group == group.title:
                table.add_row(item.name, _text(item))
        table.add_section()
    return table


def _text(item: Item) -> Text:
    """What an item is, and its options below."""
    options = [f"{name}={default}" for name, default in item.options.items()]
    recipes = [f"{name}={default}" for name, default in item.ingredients.items()]
    lines = [
        item.text,
        f"goes by: {', '.join(item.goes_by)}" if item.goes_by else "",
        ", ".join(item.required + options),
        f"ingredients: {', '.join(recipes)}" if recipes else "",
        f"used by: {', '.join(item.used_by)}" if item.used_by else "",
        item.reference,
    ]
    return Text("\n").join(
        Text(line, style="dim" if number else "")
        for number, line in enumerate(lines)
        if line
    )
