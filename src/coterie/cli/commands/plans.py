"""The command `plan`: plans a study or a graph, as tables or one JSON object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ...checks import InputError
from ...data.federation import client_name
from ...engine.clocks import trace
from ...records.files import refuse_target
from ...records.keys import digests_with_key
from ...study import identity_of
from ..own_modules import read_study_file
from ..progress import plain_progress
from ..tables import print_json, print_plan, rows_of
from ..terminal import err, interruptible, out
from .costs import show_costs
from .options import STUDY, Json, Overrides, Quiet

if TYPE_CHECKING:
    from ...planning.links import LinkPlan, Speed
    from ...planning.plans import Plan

PLAN_FILES = ("plan.csv", "weights.csv", "plan.html")

Force = Annotated[bool, typer.Option("--force", help="Let --out replace a plan.")]
Graph = Annotated[
    str | None,
    typer.Option(help="Instead of a study: a CSV with v, w, or a name: torus(2)."),
]

_SHOWN = 20
"""The most links that are printed; --json has all of them."""


@interruptible(err, "no plan was written.")
def plan(
    path: Annotated[Path | None, STUDY] = None,
    overrides: Overrides = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed of the study's federation.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Step size of the pilot's common model.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of the pilot in each round.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of the pilot.")] = None,
    samples: Annotated[
        int, typer.Option(help="Plan for this number of samples per client.")
    ] = 0,
    times: Annotated[
        Path | None,
        typer.Option(help="Measured compute times, a CSV: client, number, seconds."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="The folder for the plan.")
    ] = None,
    graph: Graph = None,
    nodes: Annotated[
        int | None, typer.Option(help="The number of nodes of a named graph.")
    ] = None,
    delays: Annotated[
        Path | None, typer.Option(help="Delays of links, a CSV: v, w, seconds.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Show the noise that this epsilon needs, and its cost."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta that goes with --epsilon.")
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say how much learning together can help each client, before training.

    With --graph, say which links to leave out so that all clients agree sooner. With
    --epsilon or [privacy], say how much noise it takes and how much accuracy it costs.
    """
    if (path is None) == (graph is None):
        raise InputError("`plan` needs either a study or --graph.")
    pilot: dict[str, Any] = {"lr": lr, "steps": steps, "rounds": rounds}
    own = {**pilot, "samples": samples or None, "times": times, "out": folder}
    own |= {"force": force or None}
    if path is None:
        own |= {"epsilon": epsilon, "delta": delta, "set": overrides or None}
        _refuse_unused(own, "a study, not for --graph")
        return _show_links(graph or "", nodes, delays, seed or 0, as_json=as_json)
    if nodes is not None or delays is not None:
        raise InputError("--nodes and --delays need --graph.")
    study = read_study_file(path, overrides)
    if epsilon is not None or study.privacy is not None:
        _refuse_unused(own | {"seed": seed}, "a plan without --epsilon and [privacy]")
        return show_costs(study, epsilon, delta, quiet=quiet, as_json=as_json)
    if delta is not None:
        raise InputError(
            f"--delta needs --epsilon or a table [privacy], got only --delta {delta:g}."
        )
    _refuse_files(path, folder, times, force=force)
    pilot |= {"seed": seed, "samples": samples}
    from ...planning import plans

    with plain_progress(err, f"{study.name}, pilot", quiet=quiet) as show:
        found = plans.plan_study(study, **pilot, progress=show)
    _show_plan(found, folder, times, as_json=as_json)


def _refuse_files(
    path: Path, folder: Path | None, times: Path | None, *, force: bool
) -> None:
    """Refuses unreadable times, and files that exist, before any work."""
    if force and folder is None:
        raise InputError("--force needs --out.")
    if times is not None:
        trace(times)
    for target in [] if folder is None else [folder / name for name in PLAN_FILES]:
        refuse_target(target, [path], force=force)


def _refuse_unused(options: dict[str, Any], what: str) -> None:
    """Refuses options that would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name} is for {what}.")


def _show_plan(
    found: Plan, folder: Path | None, times: Path | None, *, as_json: bool
) -> None:
    """Writes a plan into a folder, by default named after the study, and prints it."""
    from ...planning.waiting import waiting_of, waiting_sentences

    runs = Path("runs")
    if folder is None:
        read = digests_with_key(found.read, runs)
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
    """Prints what a network would gain without some of its links."""
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
        table.add_row("without these links", *_cells(found.without))
        table.add_row("and the others used at the best rates", *_cells(found.after))
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
