"""What a study may say in a simulation only, and not between sites.

At a site there are only its own data. What reads other clients' data, or what only a
simulation knows, cannot be computed there. The same holds for virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...checks import brief
from ..ingredients import ingredients_of
from ..ingredients.contexts import file_of
from ..ingredients.recipes import OF_MODELS, RECIPES, is_from_data, is_from_truth

if TYPE_CHECKING:
    from ..config import Entry, Study


def simulated_only(study: Study) -> list[str]:
    """What a study says that sites cannot do, one sentence each."""
    found = [*_table_problems(study), *_run_problems(study)]
    for entry in study.algorithms:
        found += _entry_problems(study, entry)
    return found


def _table_problems(study: Study) -> Iterator[str]:
    name = study.data["name"]
    if study.given is None and name != "file":
        yield (
            "`data.name` must be 'file' between sites, which read their own data, got "
            f"{brief(name)}."
        )
    if study.split["name"] != "natural":
        yield (
            "`split.name` must be 'natural' between sites, where every site is a "
            f"client, got {brief(study.split['name'])}."
        )
    if study.time is not None:
        yield "[time] is a simulation of time, so leave it out between sites."
    if study.tune is not None:
        yield (
            "[tune] searches in simulations only: search there, and write the options "
            "that it found for the sites."
        )
    if study.diagnostics is not None:
        yield "[diagnostics] measures simulations only, so leave it out between sites."
    if study.graph is not None and file_of(study.graph.edges):
        yield (
            "`graph.edges` must name a graph between sites, because the hash of the "
            f"study does not cover files, got {brief(study.graph.edges)}."
        )


def _run_problems(study: Study) -> Iterator[str]:
    run = study.run
    if run.newcomers:
        yield f"`run.newcomers` must be 0 between sites, got {run.newcomers}."
    if run.pooled_test:
        yield "`run.pooled_test` must be false between sites: nobody has all test data."
    for name in study.chooses:
        yield f"`run.{name}` must be written between sites, where nothing chooses it."


def _entry_problems(study: Study, entry: Entry) -> Iterator[str]:
    from ..config import algorithm_factory, chooses_steps

    if chooses_steps(study, entry):
        yield (
            f"`lr` of {entry.label} must be written between sites, where nothing "
            "chooses it."
        )
    for name in ingredients_of(algorithm_factory(entry.name)):
        choice = entry.options.get(name, RECIPES[name][1])
        if study.graph is not None and name in ("graph", "mixing"):
            choice = entry.options.get(name, "everybody")
        reason = _reason(name, str(choice))
        if reason:
            yield (
                f"`{name}` of {entry.label} cannot be {brief(choice)} between sites, "
                f"because {reason}."
            )


def _reason(name: str, choice: str) -> str:
    """Why sites cannot make an ingredient; "" if they can."""
    if name in OF_MODELS:
        return ""
    if file_of(choice):
        return "the hash of the study does not cover files"
    if is_from_data(name, choice):
        return "it reads the data of all clients"
    if is_from_truth(name, choice):
        return "only a simulation knows it"
    return ""
