"""Published experiments: our values next to published values, and whether they agree.

A paper is a folder of `reproductions/` with a file `items.py`. Its `ITEMS` maps names
to functions `(overrides) -> list[Claim]`. Its `REFERENCES`, if there is one, names the
items whose numbers are not printed in the paper, but come from independent scripts.
`items.py` may import other files of its folder, as in `from .coins import fig1a`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ..checks import one_of, value_of
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
    """A claim that agrees if the mean gap over seeds exceeds its standard error."""
    values = gaps.to_numpy(float)
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
    items_of(paper)
    found: frozenset[str] = vars(sys.modules[f"reproduce_{paper}"]).get(
        "REFERENCES", frozenset()
    )
    return "reference" if item in found else "published"


def reproduce_items(
    paper: str, item: str, overrides: Sequence[str], console: Console
) -> bool:
    """Whether all claims of the items agree; also prints the claims.

    Args:
        paper: a folder of `reproductions/`; empty: list all papers.
        item: one of its items, or `all`; empty: list its items.
        overrides: settings in the form of `coterie run --set`.
        console: where to print.
    """
    if not paper or not item:
        names = (
            [paper] if paper else [p.parent.name for p in papers().glob("*/items.py")]
        )
        for name in sorted(names):
            for each, function in items_of(name).items():
                first = (function.__doc__ or "").split("\n")[0]
                console.print(f"coterie reproduce {name} {each}: {first}")
        return True
    items = items_of(paper)
    if item == "all":
        # A list and not a generator: all items run, even if one disagrees.
        found = [reproduce_items(paper, each, overrides, console) for each in items]
        return all(found)
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
