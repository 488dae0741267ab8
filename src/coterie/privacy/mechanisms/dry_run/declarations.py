"""Compares the releases that a method declares with the releases in a dry run.

A method declares `Releases` in its own file. The dry run counts what the method would
release, and we refuse a method that releases more than it declares. A declaration never
changes an account, because noise and epsilon follow from the dry run.
"""

from __future__ import annotations

from ....checks import InputError
from ....types import Algorithm, Releases


class UndeclaredRelease(InputError):
    """A method releases more than it declares."""


def declaration(releases: Releases) -> str:
    """The declaration as a method writes it.

    >>> declaration(Releases(average=2, losses=True))
    'Releases(average=2, losses=True)'
    """
    given = [f"{n}={value}" for n, value in releases._asdict().items() if value]
    return f"Releases({', '.join(given)})"


def is_within(found: Releases, declared: Releases) -> bool:
    """Whether the declaration covers everything that was found."""
    return all(map(int.__le__, map(int, found), map(int, declared)))


def refuse_undeclared(algorithm: Algorithm, found: Releases, label: str) -> None:
    """Refuses a method that releases more than it declares.

    Args:
        algorithm: if it declares nothing, it may release whatever was found.
        found: the releases that a dry run found.
        label: the name of the algorithm in errors.
    """
    declared = algorithm.releases
    if declared is None:
        return
    if not is_within(found, declared) or declared.unbounded > found.unbounded:
        raise UndeclaredRelease(
            f"{label} cannot be trained privately: it declares "
            f"{declaration(declared)}, but the dry run found {declaration(found)}."
        )
