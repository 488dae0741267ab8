"""What is found of records once, for a page that asks for it many times."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from ..records import Records

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def keeping(records: Records) -> Records:
    """The same records; what is found of them is kept as long as they are.

    Whoever asks must leave all tables as they are, those of records and those found.
    """
    if records.kept is not None:
        return records
    records = replace(records)
    object.__setattr__(records, "kept", {})
    return records


def kept(
    function: Callable[Concatenate[Records, Asked], Found],
) -> Callable[Concatenate[Records, Asked], Found]:
    """The function, which is called once for each question where answers are kept."""

    @functools.wraps(function)
    def found(records: Records, /, *args: Asked.args, **options: Asked.kwargs) -> Found:
        if records.kept is None:
            return function(records, *args, **options)
        key = (function.__name__, args, tuple(options.items()))
        if key not in records.kept:
            records.kept[key] = function(records, *args, **options)
        return records.kept[key]

    return found
