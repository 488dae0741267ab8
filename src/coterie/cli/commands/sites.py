"""The commands `hub`, `join` and `log`: a study between organisations."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from ...checks import several
from ..terminal import err, interruptible, out
from .options import STUDY, Json

if TYPE_CHECKING:
    from ...deploy.sites.joining import Joining

SITE = typer.Option("--site", help="What your site has and allows (site.toml).")


@interruptible(err, "run the same command again to continue.")
def hub(
    study: Annotated[Path, STUDY],
    roster: Annotated[
        Path, typer.Option(help="The roster that every member has signed.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where members reach the hub.")
    ],
    key: Annotated[
        Path | None,
        typer.Option(help="The hub's key; default: NAME.key next to the roster."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder of the log.")] = Path("hub"),
    page: Annotated[
        bool, typer.Option("--page", help="Show the state of the run on a page.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Do not hear a member whose key is stolen (repeatable).",
        ),
    ] = None,
) -> None:
    """Connect the members of a study: add up rows and relay mail, until it is done."""
    from ...checks import TrainingError
    from ...deploy.sites.serving import follow, read_hub, refuse_listen, serving

    files = read_hub(study, roster, key)
    where, left_out = refuse_listen(listen), without or ()
    with (
        serving(files, where, folder, left_out) as (served, port),
        contextlib.ExitStack() as stack,
    ):
        out.print(f"the hub listens at port {port}", soft_wrap=True)
        if page:
            from ...deploy.sites.page import status_page

            address = stack.enter_context(status_page(served))
            out.print(f"status page, for this machine only: {address}", soft_wrap=True)
        ended = follow(served, lambda line: out.print(line, soft_wrap=True))
    if ended != "done":
        raise TrainingError(f"the run has {ended.rstrip('.')}.")
    out.print("done: every member that was there has finished")


@interruptible(err, "run the same command again to continue.")
def join(
    study: Annotated[Path, STUDY],
    site: Annotated[Path, SITE],
    check: Annotated[
        bool, typer.Option("--check", help="Only test whether everything is ready.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Only train a round on made-up rows, here."),
    ] = False,
) -> None:
    """Take part in a study with your own data, which stay on this machine."""
    from ...deploy.sites.joining import ready_to_join

    joining = ready_to_join(study, site)
    if check:
        return _check(joining)
    if rehearse:
        from ...deploy.sites.rehearsals import rehearse as train

        for line in train(joining):
            out.print(line, soft_wrap=True)
        return
    from ...deploy.sites.participation import take_part

    folder = take_part(joining, lambda line: out.print(line, soft_wrap=True))
    out.print(f"results: {folder}", soft_wrap=True)


def _check(joining: Joining) -> None:
    """Prints the result of every test; the exit code says whether one failed."""
    from ...deploy.sites.checkups import FAILED, look

    failed = 0
    for result in look(joining):
        failed += result.outcome == FAILED
        line = f"{result.outcome:<8} {result.what:<13} {result.text}"
        out.print(line, soft_wrap=True)
    if failed:
        out.print(f"{several(failed, 'test')} failed: this site cannot join yet.")
        raise typer.Exit(1)
    out.print("This site is ready.")


def leave(
    study: Annotated[Path, STUDY],
    site: Annotated[Path, SITE],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Leave a run for good. Your own results stay; what others learned stays, too."""
    from ...deploy.sites.joining import ready_to_join
    from ...deploy.sites.leaving import leave_run

    joining = ready_to_join(study, site)
    if not yes and not typer.confirm(f"Does {joining.site.name} leave for good?"):
        raise typer.Exit(1)
    leave_run(joining)
    out.print(
        f"{joining.site.name} has left: the hub has deleted what it kept for it.",
        soft_wrap=True,
    )


def log(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder of your site.")
    ],
    as_json: Json = False,
) -> None:
    """Say what left your site: to whom, when, how many bytes, in which round."""
    from ...deploy.sites.departures import departures_of

    left = departures_of(folder)
    if as_json:
        from ..tables import print_json

        return print_json({"departures": [one._asdict() for one in left]})
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("when", "what", "attempt", "kind", "to"):
        table.add_column(column, overflow="fold")
    table.add_column("bytes", justify="right")
    for one in left:
        when = f"{datetime.fromtimestamp(one.at):%m-%d %H:%M:%S}"
        cells = (when, one.what, str(one.attempt), one.kind, one.receivers)
        table.add_row(*cells, f"{one.bytes:,}")
    out.print(table)
    total = sum(one.bytes for one in left)
    out.print(f"{several(len(left), 'message')} with {total:,} bytes left this site.")
