"""Ingredients that are made from the clients' data before private training."""

from __future__ import annotations

from collections.abc import Iterator

from ....checks import InputError
from ....privacy.accounting.ledger import Release
from ...config import Entry, Study, algorithm_factory
from ...identity import choosing_of
from ...ingredients import (
    RECIPES,
    can_have_noise,
    ingredients_of,
    is_from_data,
)
from ...setup import Setup


def _choices_from_data(entry: Entry) -> Iterator[tuple[str, str]]:
    """Names and texts of an entry's ingredients that are made from data."""
    for name in ingredients_of(algorithm_factory(entry.name)):
        choice = str(entry.options.get(name, RECIPES[name][1]))
        if is_from_data(name, choice):
            yield name, choice


def refuse_made_from_data(study: Study) -> None:
    """Refuses ingredients that a private study would make from data."""
    for entry in study.algorithms if study.privacy is not None else []:
        for name, choice in _choices_from_data(entry):
            raise InputError(
                f"`{name}` {choice!r} of {entry.label} is made from the clients' data "
                "before training, which is not audited: use a file or a recipe that "
                "does not use data."
            )


def refuse_uncounted_choices(study: Study) -> None:
    """Refuses ingredients without a private version, before data are used."""
    privacy = study.privacy
    if privacy is None:
        return
    for entry in study.algorithms:
        refuse_unnoised(study, entry)
    if privacy.partners is not None and not any(
        map(any, map(_choices_from_data, study.algorithms))
    ):
        raise InputError(
            "`privacy.partners` is for weights that are made from data, such as "
            '`weights = "means(50)"`, but no algorithm has any.'
        )


def refuse_unnoised(study: Study, entry: Entry) -> None:
    """Refuses ingredients of an entry that cannot be made with noise."""
    for name, choice in _choices_from_data(entry):
        why = "cannot be made with noise"
        if study.time is not None:
            why = "is not counted with [time]"
        elif can_have_noise(name, choice):
            continue
        raise InputError(
            f"`{name}` {choice!r} of {entry.label} is made from the clients' data "
            f"before training, and {why}: with [privacy] use a file, a recipe that "
            "does not use data, or weights by means, moments or mmd."
        )


def partner_releases(setup: Setup) -> list[Release]:
    """All releases of clients' data that a study needs before training."""
    choosing = choosing_of(setup.study, setup.seed, setup.read)
    if choosing is None:
        return []
    asked = {
        choice
        for entry in setup.study.algorithms
        for choice in _choices_from_data(entry)
    }
    return [each for _ in asked for each in choosing.releases(2)]


def releases_before(setup: Setup, entry: Entry) -> tuple[Release, ...]:
    """The releases of clients' data that an entry needs before training."""
    choosing = choosing_of(setup.study, setup.seed, setup.read)
    if choosing is None or not any(_choices_from_data(entry)):
        return ()
    return choosing.releases(len(setup.federation))
