"""The commands `hub`, `join` and `log`: a study between organisations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..terminal import err, interruptible, out
from .options import STUDY

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
    folder: Annotated[Path, typer.Option(help="Of the log of the run.")] = Path("hub"),
) -> None:
    """Connect the members of a study: add up rows and relay mail, until it is done."""
    from ...checks import TrainingError
    from ...deploy.sites.serving import follow, read_hub, refuse_listen, serving

    files = read_hub(study, roster, key)
    with serving(files, refuse_listen(listen), folder) as (served, port):
        out.print(f"the hub listens at port {port}", soft_wrap=True)
        ended = follow(served, lambda line: out.print(line), lambda: time.sleep(0.1))
    if ended != "done":
        raise TrainingError(f"the run has {ended.rstrip('.')}.")
    out.print("done: every member that was there has finished")


@interruptible(err, "run the same command again to continue.")
def join(
    study: Annotated[Path, STUDY],
    site: Annotated[Path, SITE],
) -> None:
    """Take part in a study with your own data, which stay on this machine."""
    from ...deploy.sites.joining import ready_to_join

    joining = ready_to_join(study, site)
    from ...deploy.sites.participation import take_part

    folder = take_part(joining, lambda line: out.print(line, soft_wrap=True))
    out.print(f"results: {folder}", soft_wrap=True)


def log(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder of your site.")
    ],
) -> None:
    """Say what left your site: to whom, when, how many bytes, in which round."""
