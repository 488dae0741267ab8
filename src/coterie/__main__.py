"""The command line: `coterie`, or `python -m coterie`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

PURPOSE = "Personalised collaborative learning: one model per client."

COMMANDS = {
    "init": ("inits", "Look at a file of your own, and write a study of it."),
    "run": ("runs", "Compare the algorithms of a study, and write a report."),
    "plan": ("plans", "Say how much learning together can help, before training."),
    "audit": ("audits", "Attack a study: is it as private as its [privacy] says?"),
    "list": ("listings", "List what a study can name, with options and defaults."),
    "report": ("runs", "Write the report of a run again."),
    "table": ("papers", "Print the scores of runs as a table for a paper."),
    "figures": ("papers", "Write the main figures of a run as PDF files for a paper."),
    "pack": ("archives", "Write one file with which anybody can repeat a run."),
    "export": ("exports", "Write one client's model as files that run elsewhere."),
    "predict": ("exports", "Say what an exported model predicts for new rows."),
    "watch": ("watching", "Show the progress of a run until it ends."),
    "compare": ("comparisons", "Show several runs side by side."),
    "check": ("checks", "Run the conformance suite on an algorithm."),
    "reproduce": ("checks", "Run a published experiment and compare the results."),
    "hub": ("sites", "Connect the members of a study between organisations."),
    "join": ("sites", "Take part in a study with your own data."),
    "leave": ("sites", "Leave a study between organisations for good."),
    "log": ("sites", "Say what left your site."),
    "roster": ("rosters", "Agree with other organisations who takes part in a study."),
}
"""The module of each command in `cli.commands`, and what the command is for.

The table is in this module so that help does not import torch. The module of a command
is imported when somebody types the command.
"""

GROUPS = {
    "roster": {
        "request": "Make your key, and a request for a certificate.",
        "authority": "Make an authority, which signs requests.",
        "sign": "Sign requests as an authority.",
        "make": "Write the first roster of a study.",
        "approve": "Show a roster, and sign it for your site.",
        "merge": "Collect the signatures of copies.",
        "add": "Add a member, or a new certificate of a member.",
        "revoke": "Revoke a member's certificate.",
        "check": "Say whether a roster can be used.",
        "demo": "Make everything for a demonstration on one machine.",
    },
}
"""Commands that have commands of their own, and what each of these is for."""

_COMPLETE = "_COTERIE_COMPLETE"
"""The environment variable with which a shell asks for completions."""

_COMPLETION = (["--install-completion"], ["--show-completion"])


def main() -> None:
    """Runs the command `coterie`; the user can stop it even while it imports."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    if sys.argv[1:] == ["--version"]:
        from . import __version__

        return print(f"coterie {__version__}")
    _leave_out_this_folder()
    if _is_light(sys.argv[1:]):
        return _show_light()
    from .cli import main as begin

    begin()


def _is_light(words: list[str]) -> bool:
    """Whether the user asks for help or completion, which need no torch."""
    if _COMPLETE in os.environ or words in ([], ["--help"]):
        return True
    if words[:1] in _COMPLETION:
        return True
    return words[0] in COMMANDS and words[1:] == ["--help"]


def _show_light() -> None:
    """Answers as `coterie.cli` would, without importing the commands."""
    from .cli.completion import light_app

    completes = _COMPLETE in os.environ or sys.argv[1:2] in _COMPLETION
    light_app()(prog_name="coterie" if completes else None)


def _leave_out_this_folder() -> None:
    """Removes the current folder, which `python -m` adds, from Python's path.

    Otherwise a file `torch.py` in this folder would run in place of torch.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        mine = os.path.samefile(sys.path[0] or ".", ".")
        needed = os.path.samefile(".", package)
    except (OSError, IndexError):
        return
    if mine and not needed and not sys.flags.safe_path:
        del sys.path[0]


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process at once, because imports cannot be stopped in another way."""
    os.write(2, b"Interrupted before anything had started.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
