"""A cache of what was computed from records, for a page that asks for it many times."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from ..records import Records

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


def with_cache(records: Records) -> Records:
    """The same records, with a cache. The cache lives as long as the records.

    The caller must not change any table, neither of the records nor of the results.
    """
    if records.cache is not None:
        return records
    records = replace(records)
    object.__setattr__(records, "cache", {})
    return records


def cached(
    function: Callable[Concatenate[Records, Asked], Answer],
) -> Callable[Concatenate[Records, Asked], Answer]:
    """The function; if the records have a cache, it keeps the result of each call."""

    @functools.wraps(function)
    def ask(records: Records, /, *args: Asked.args, **options: Asked.kwargs) -> Answer:
        if records.cache is None:
            return function(records, *args, **options)
        key = (function.__name__, args, tuple(options.items()))
        if key not in records.cache:
            records.cache[key] = function(records, *args, **options)
        return records.cache[key]

    return ask
