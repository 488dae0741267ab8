"""The command `plan`: of a study, and of a graph, as tables or one object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ...checks import InputError
from ...data.federation import client_name
from ...engine.clocks import trace
from ...records.files import refuse_target
from ...records.keys import keyed
from ...study import Study, identity_of
from ..beside import read_beside
from ..progress import plain_progress
from ..tables import print_json, print_plan, rows_of
from ..terminal import err, interruptible, out
from .costs import show_costs
from .options import STUDY, Json, Overrides, Quiet

if TYPE_CHECKING:
    from ...planning.links import LinkPlan, Speed
    from ...planning.plans import Plan

PLAN_FILES = ("plan.csv", "weights.csv", "plan.html")

Force = Annotated[
    bool, typer.Option("--force", help="Let --out replace an earlier plan.")
]
Graph = Annotated[
    str | None,
    typer.Option(help="In place of a study: a CSV with v, w, or a name: torus(2)."),
]

_SHOWN = 20
"""So many links are listed; --json has them all."""


@interruptible(err, "no plan was written.")
def plan(
    path: Annotated[Path | None, STUDY] = None,
    overrides: Overrides = None,
    seed: Annotated[
        int | None, typer.Option(help="Which of the study's federations.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Step size of the pilot's common model.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Its steps in a round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of its training.")] = None,
    samples: Annotated[
        int, typer.Option(help="Plan for so many samples of each client.")
    ] = 0,
    times: Annotated[
        Path | None,
        typer.Option(help="Measured compute times, a CSV: client, number, seconds."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where the plan is written.")
    ] = None,
    graph: Graph = None,
    nodes: Annotated[int | None, typer.Option(help="Of a graph by name.")] = None,
    delays: Annotated[
        Path | None, typer.Option(help="Of its links, a CSV: v, w, delay in seconds.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="What noise it needs, and what that costs.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="With --epsilon.")] = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say how much learning together can help each client, before training.

    With --graph: which links to leave out so that everybody agrees sooner. With
    --epsilon, or [privacy]: what noise it takes, and what accuracy that would cost.
    """
    if (path is None) == (graph is None):
        raise InputError("`plan` needs a study or --graph, and not both.")
    pilot: dict[str, Any] = {"lr": lr, "steps": steps, "rounds": rounds}
    own = {**pilot, "samples": samples or None, "times": times, "out": folder}
    own |= {"force": force or None}
    if path is None:
        _refuse_privacy(epsilon, delta)
        _refuse_unused(own | {"set": overrides or None}, "a study, not for --graph")
        return _show_links(graph or "", nodes, delays, seed or 0, as_json=as_json)
    if nodes is not None or delays is not None:
        raise InputError("--nodes and --delays are for --graph.")
    study = read_beside(path, overrides)
    _refuse_delta(study, epsilon, delta)
    if epsilon is not None or study.privacy is not None:
        _refuse_unused(own | {"seed": seed}, "a plan without --epsilon and [privacy]")
        return show_costs(study, epsilon, delta, quiet=quiet, as_json=as_json)
    _refuse_files(path, folder, times, force=force)
    pilot |= {"seed": seed, "samples": samples}
    _show_plan(_planned(study, pilot, quiet), folder, times, as_json=as_json)


def _refuse_files(
    path: Path, folder: Path | None, times: Path | None, *, force: bool
) -> None:
    """Refuses bad times, and files that would be replaced, before any work."""
    if force and folder is None:
        raise InputError("--force is for --out.")
    if times is not None:
        trace(times)
    for target in [] if folder is None else [folder / name for name in PLAN_FILES]:
        refuse_target(target, [path], force=force)


def _planned(study: Study, pilot: dict[str, Any], quiet: bool) -> Plan:
    from ...planning import plans

    with plain_progress(err, f"{study.name}, pilot", quiet=quiet) as show:
        return plans.plan_study(study, **pilot, progress=show)


def _refuse_privacy(epsilon: float | None, delta: float | None) -> None:
    if epsilon is not None or delta is not None:
        raise InputError("--epsilon and --delta are for a study, not for --graph.")


def _refuse_unused(options: dict[str, Any], what: str) -> None:
    """Refuses options that would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name} is for {what}.")


def _refuse_delta(study: Study, epsilon: float | None, delta: float | None) -> None:
    if delta is not None and epsilon is None and study.privacy is None:
        raise InputError(
            f"--delta needs --epsilon or a table [privacy], got {delta:g} alone."
        )


def _show_plan(
    found: Plan, folder: Path | None, times: Path | None, *, as_json: bool
) -> None:
    """Writes a plan into a folder, by default of the study's name, and prints it."""
    from ...planning.waiting import waiting_of, waiting_sentences

    runs = Path("runs")
    if folder is None:
        read = keyed(found.read, runs)
        folder = runs / f"plan-{identity_of(found.study, read)}"
    lines = found.summary()
    if times is not None:
        count = found.everybody
        names = [client_name(found.names, client) for client in range(count)]
        lines += waiting_sentences(
            waiting_of(trace(times, clients=count), count), names
        )
    found.write(folder)
    page, weights = folder / "plan.html", folder / "weights.csv"
    if as_json:
        return print_json(
            {
                "folder": str(folder),
                "page": str(page),
                "weights": str(weights),
                "study": found.study.name,
                "summary": lines,
                "clients": rows_of(found.table(), index=False),
            }
        )
    for line in lines:
        out.print(line)
    print_plan(found)
    out.print(f"plan: {page}", soft_wrap=True)
    out.print(f"weights for a study: {weights}", soft_wrap=True)


def _show_links(
    graph: str, nodes: int | None, delays: Path | None, seed: int, *, as_json: bool
) -> None:
    """Prints what leaving links out would bring."""
    from ...planning.links import network_of, plan_links

    found = plan_links(network_of(graph, nodes, delays, seed))
    if as_json:
        return print_json(_answer(found))
    out.print(found.summary())
    table = Table()
    for column in ("", "links", "exchanges per second", "eigengap", "rate per second"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("as it is", *_cells(found.before))
    if found.removed_links:
        table.add_row("without them", *_cells(found.without))
        table.add_row("and others used as often as is best", *_cells(found.after))
    out.print(table)
    if not found.removed_links:
        return
    links = Table(title="links to leave out")
    for column in ("between", "and", "seconds"):
        links.add_column(column, justify="right" if column == "seconds" else "left")
    for v, w, delay in found.removed_links[:_SHOWN]:
        links.add_row(v, w, f"{delay:g}")
    out.print(links)
    if len(found.removed_links) > _SHOWN:
        out.print(f"and {len(found.removed_links) - _SHOWN} more; --json has them all.")


def _cells(speed: Speed) -> list[str]:
    numbers = (speed.messages, speed.gap, speed.rate)
    return [str(speed.links), *(f"{value:.3g}" for value in numbers)]


def _answer(found: LinkPlan) -> dict[str, object]:
    edges, delays, names = found.network
    kept = zip(edges.tolist(), delays.tolist(), found.rates.tolist(), strict=True)
    return {
        "summary": found.summary(),
        "before": found.before._asdict(),
        "without": found.without._asdict(),
        "after": found.after._asdict(),
        "removed": [{"v": v, "w": w, "delay": d} for v, w, d in found.removed_links],
        "links": [
            {"v": names[v], "w": names[w], "delay": delay, "rate": rate}
            for (v, w), delay, rate in kept
        ],
    }
