"""What comes with coterie besides its code: examples and reproductions."""

from __future__ import annotations

from pathlib import Path


def installed_folder(name: str) -> Path:
    """A folder of the repository, found next to the source or in the package."""
    here = Path(__file__).parents[1]
    for folder in (here.parents[1] / name, here / name):
        if folder.is_dir():
            return folder
    from ..checks import InputError  # imports torch

    raise InputError(f"the folder `{name}` was not installed.")


def example_named(name: str) -> Path:
    """The study file of an example."""
    from ..checks import one_of

    known = {
        path.stem: path for path in sorted(installed_folder("examples").glob("*.toml"))
    }
    return known[one_of("example", name, known)]
