"""The command `plan`: of a study, and of a graph, as tables or one object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..data.federation import called
from ..engine.clocks import trace
from ..planning import plans
from ..planning.links import LinkPlan, Speed, network_of, plan_links
from ..planning.waiting import in_words, waiting_of
from ..study import identity_of, read_study
from .answers import plan_answer, print_json
from .beside import look_beside, texts_of
from .progress import plain_progress
from .tables import err, out, print_plan

_SHOWN = 20
"""So many links are listed; --json has them all."""


def show_plan(
    path: Path,
    overrides: Sequence[str],
    times: Path | None,
    folder: Path | None,
    given: dict[str, Any],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Plans a study, writes the plan into a folder, and prints it.

    Args:
        path: the study.
        overrides: settings of it.
        times: measured compute times.
        folder: where it is written; None: named by the study.
        given: settings of the plan.
        quiet: no progress bar.
        as_json: one object in place of tables.
    """
    if times is not None:
        trace(times)  # refused before any work
    look_beside(path.parent, texts_of(path, overrides))
    study = read_study(path, overrides)
    with plain_progress(err, f"{study.name}, pilot", quiet=quiet) as show:
        found = plans.plan_study(study, **given, progress=show)
    lines = found.summary()
    if times is not None:
        count = len(found.clients)
        names = [called(found.names, client) for client in found.clients]
        lines += in_words(waiting_of(trace(times, clients=count), count), names)
    if folder is None:
        folder = Path("runs") / f"plan-{identity_of(study, found.read)}"
    found.write(folder)
    if as_json:
        print_json(plan_answer(found, folder, lines))
        return
    for line in lines:
        out.print(line)
    print_plan(found)
    out.print(f"plan: {folder / 'plan.html'}", soft_wrap=True)
    out.print(f"weights for a study: {folder / 'weights.csv'}", soft_wrap=True)


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
