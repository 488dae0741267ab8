"""Pages from templates: words and markup are files in folders `templates`.

This module does not import plotly, so that a page without figures is quick to make.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from markupsafe import Markup

from ..checks import several
from ..scores.axes import in_seconds, virtual_seconds
from ..scores.words import in_bytes, join_names, large, percent, some_of

# Okabe and Ito's colours without yellow and black, then two of Tol's: distinct in
# the common kinds of colour blindness, and dark enough on white.
COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #882255 #999933".split()
GREY = "#666666"


def render(template: str, *, room: str = "report", **data: object) -> Markup:
    """A template as HTML, with all of `data` escaped.

    Args:
        template: the name of a file.
        room: the package whose folder `templates` has the file. The file can also use
            the templates of `report`.
        data: the variables of the template.
    """
    return Markup(_environment(room).get_template(template).render(data).strip())


@cache
def _environment(room: str) -> Environment:
    rooms = dict.fromkeys([room, "report"])
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(f"coterie.{name}") for name in rooms]),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=[_OneSpace],
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    words = (in_bytes, in_seconds, join_names, large, percent, several, some_of)
    environment.filters |= {word.__name__: word for word in (*words, virtual_seconds)}
    environment.filters["as_json"] = _as_json

    def file(name: str) -> Markup:
        """The unchanged text of a file in a folder `templates`: CSS or JavaScript."""
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])

    environment.globals["file"] = file
    return environment


class _OneSpace(Extension):
    """Turns line breaks and indentation of a template into one space on the page."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for token in stream:
            text = token.value
            if token.type == "data":
                text = re.sub(r"\s+", " ", text)
            yield Token(token.lineno, token.type, text)


def _as_json(figure: Any) -> Markup:
    """A figure as JSON without `<`, which could end the script element around it."""
    return Markup(str(figure.to_json()).replace("<", "\\u003c"))
