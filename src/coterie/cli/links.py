"""The command `plan --graph`: which links to leave out, as a table or one object."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from ..planning.links import LinkPlan, Speed, network_of, plan_links
from .answers import print_json
from .tables import out

_SHOWN = 20
"""So many links are listed; --json has them all."""


def plan_graph(
    graph: str, nodes: int | None, delays: Path | None, seed: int, *, as_json: bool
) -> None:
    """Prints what leaving links out would bring."""
    found = plan_links(network_of(graph, nodes, delays, seed))
    if as_json:
        print_json(_answer(found))
        return
    out.print(found.summary())
    table = Table()
    for column in ("", "links", "exchanges per second", "eigengap", "rate per second"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("as it is", *_cells(found.before))
    if found.removed:
        table.add_row("without them", *_cells(found.after))
    out.print(table)
    if not found.removed:
        return
    links = Table(title="links to leave out")
    for column in ("between", "and", "seconds"):
        links.add_column(column, justify="right" if column == "seconds" else "left")
    for v, w, delay in found.removed[:_SHOWN]:
        links.add_row(v, w, f"{delay:g}")
    out.print(links)
    if len(found.removed) > _SHOWN:
        out.print(f"and {len(found.removed) - _SHOWN} more; --json has them all.")


def _cells(speed: Speed) -> list[str]:
    numbers = (speed.messages, speed.gap, speed.rate)
    return [str(speed.links), *(f"{value:.3g}" for value in numbers)]


def _answer(found: LinkPlan) -> dict[str, object]:
    edges, delays, names = found.network
    kept = zip(edges.tolist(), delays.tolist(), found.rates.tolist(), strict=True)
    return {
        "summary": found.summary(),
        "before": found.before._asdict(),
        "after": found.after._asdict(),
        "removed": [{"v": v, "w": w, "delay": d} for v, w, d in found.removed],
        "links": [
            {"v": names[v], "w": names[w], "delay": delay, "rate": rate}
            for (v, w), delay, rate in kept
        ],
    }
