"""Published experiments: our values next to published values, and whether they agree.

A paper is a folder of `reproductions/` with a file `items.py`. Its `ITEMS` maps names
to functions `(overrides) -> list[Claim]`. Its `REFERENCES`, if there is one, names the
items whose numbers are not printed in the paper, but come from independent scripts. Its
`LONG` names the items that take more than five minutes of one core. `items.py` may
import other files of its folder, as in `from .coins import fig1a`.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ..checks import InputError, one_of, value_of
from ..study import Result, Study, run_study
from .examples import installed_folder
from .progress import study_progress

if TYPE_CHECKING:
    import pandas as pd


class Claim(NamedTuple):
    """One published value or statement, and what we found.

    Where the paper prints no number, `published` is that of an independent script. The
    column is then called `reference`; see `source_of`.
    """

    what: str
    published: str
    ours: str
    agrees: bool | None  # None: shown without a verdict
    note: str = ""


def run_with_progress(study: Study) -> Result:
    """The result of a study that runs with a progress bar on the terminal."""
    with study_progress(Console(stderr=True), study.name) as show:
        return run_study(study, progress=show)


def settings(overrides: Sequence[str], **defaults: Any) -> dict[str, Any]:
    """The defaults of an item's settings, replaced where `name=value` is given."""
    for override in overrides:
        name, _, value = override.partition("=")
        one_of("setting", name, defaults)
        defaults[name] = value_of(value)
    return defaults


def lead(what: str, published: float, gaps: pd.Series, digits: int = 1) -> Claim:
    """A claim that agrees if the mean gap over seeds exceeds its standard error.

    A single seed has no standard error. It is shown, and not judged.
    """
    values = gaps.to_numpy(float)
    if len(values) == 1:
        ours = f"{values[0]:+.{digits}f}"
        return Claim(what, f"{published:+.{digits}f}", ours, None, "one seed")
    mean, error = values.mean(), values.std(ddof=1) / len(values) ** 0.5
    ours = f"{mean:+.{digits}f}±{error:.{digits}f}"
    return Claim(what, f"{published:+.{digits}f}", ours, bool(mean > error))


Item = Callable[[Sequence[str]], list[Claim]]


def papers() -> Path:
    """The folder of reproductions."""
    return installed_folder("reproductions")


def items_of(paper: str) -> dict[str, Item]:
    """The items of a paper by name."""
    known = {path.parent.name: path for path in papers().glob("*/items.py")}
    one_of("paper", paper, known)
    name, path = f"reproduce_{paper}", known[paper]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, path, submodule_search_locations=[str(path.parent)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    items: dict[str, Item] = sys.modules[name].ITEMS
    return items


def source_of(paper: str, item: str) -> str:
    """The heading of the numbers that ours are compared with."""
    return "reference" if item in _items_in(paper, "REFERENCES") else "published"


def long_items(paper: str) -> frozenset[str]:
    """The items of a paper that take more than five minutes of one core."""
    return _items_in(paper, "LONG")


def _items_in(paper: str, name: str) -> frozenset[str]:
    """The items that a paper names in a set; none without such a set."""
    items_of(paper)
    found: frozenset[str] = vars(sys.modules[f"reproduce_{paper}"]).get(
        name, frozenset()
    )
    return found


def reproduce_items(
    paper: str, item: str, overrides: Sequence[str], console: Console
) -> bool:
    """Whether all claims of the items agree; also prints the claims.

    `all` leaves out long items. If one of its items cannot run, such as for want of
    data, the others run, and the result is False.

    Args:
        paper: a folder of `reproductions/`, or `all`; empty: list all papers.
        item: one of its items, or `all`; empty: list its items.
        overrides: settings in the form of `coterie run --set`.
        console: where to print.
    """
    names = sorted(path.parent.name for path in papers().glob("*/items.py"))
    if paper == "all":
        one_of("item", item, ["", "all"])
        return all([_reproduce_all(name, overrides, console) for name in names])
    if not paper or not item:
        for name in [paper] if paper else names:
            for each, function in items_of(name).items():
                first = (function.__doc__ or "").split("\n")[0]
                console.print(f"coterie reproduce {name} {each}: {first}")
        return True
    if item == "all":
        return _reproduce_all(paper, overrides, console)
    items = items_of(paper)
    one_of("item", item, [*items, "all"])
    claims = items[item](overrides)
    table = Table(title=f"{paper}, {item}")
    for column in ("claim", source_of(paper, item), "ours", "agrees", "note"):
        table.add_column(column)
    for claim in claims:
        verdict = {True: "yes", False: "NO", None: "-"}[claim.agrees]
        table.add_row(claim.what, claim.published, claim.ours, verdict, claim.note)
    console.print(table)
    return all(claim.agrees is not False for claim in claims)


def _reproduce_all(paper: str, overrides: Sequence[str], console: Console) -> bool:
    """Whether all items of a paper agree that are not long."""
    items, agree = items_of(paper), True
    for item in items:
        if item in long_items(paper):
            console.print(f"{paper} {item}: not run, because it is long.")
            continue
        began = time.monotonic()
        try:
            fine = reproduce_items(paper, item, overrides, console)
        except InputError as error:
            console.print(f"{paper} {item}: not run: {error}", markup=False)
            fine = False
        word = "agrees" if fine else "does not agree"
        console.print(f"{paper} {item}: {word}, {time.monotonic() - began:.0f} s.")
        agree = agree and fine
    return agree
