"""What a method declares to release, verified against what a dry run found.

A method declares `Releases` in its own file. The dry run counts what it would release.
A method that releases more than it declares is refused; what it declares changes no
account, since noise and epsilon follow what was found.
"""

from __future__ import annotations

from ....checks import InputError
from ....types import Algorithm, Releases


class UndeclaredRelease(InputError):
    """A method does not release what it declares."""


def declaration(releases: Releases) -> str:
    """The declaration as a method writes it.

    >>> declaration(Releases(average=2, losses=True))
    'Releases(average=2, losses=True)'
    """
    given = [f"{n}={value}" for n, value in releases._asdict().items() if value]
    return f"Releases({', '.join(given)})"


def is_within(found: Releases, declared: Releases) -> bool:
    """Whether everything that was found is declared."""
    return all(map(int.__le__, map(int, found), map(int, declared)))


def refuse_undeclared(algorithm: Algorithm, found: Releases, label: str) -> None:
    """Refuses a method that releases more than it declares.

    Args:
        algorithm: whose declaration it is; one without any may release what was found.
        found: by a dry run.
        label: how the algorithm is called.
    """
    declared = algorithm.releases
    if declared is None:
        return
    if not is_within(found, declared) or declared.unbounded > found.unbounded:
        raise UndeclaredRelease(
            f"{label} cannot be trained privately: it declares "
            f"{declaration(declared)}, but the dry run found {declaration(found)}."
        )
