"""Calls that are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from coterie.checks import InputError


def refusal(call: Callable[..., object], *given: Any, **options: Any) -> str:
    """The one sentence with which a call is refused."""
    with pytest.raises(InputError) as caught:
        call(*given, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def refuses(
    words: str, call: Callable[..., object], /, *given: Any, **options: Any
) -> None:
    """Raises unless a call is refused in one sentence with these words, a pattern."""
    said = refusal(call, *given, **options)
    assert re.search(words, said), said
