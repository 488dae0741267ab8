"""Ingredients of a federation by their texts, for a linear model and seed 0."""

from __future__ import annotations

from coterie.data.federation import Federation
from coterie.models import build, layout, linear
from coterie.study import ingredients
from coterie.study.config import Entry
from coterie.study.ingredients import partners
from coterie.study.setup import build_algorithm


def context(federation: Federation) -> ingredients.Context:
    shape, outputs = federation.features.shape[1:], federation.outputs
    module = build(lambda: linear(shape, outputs), 0)
    return ingredients.Context(federation, layout(module), 0)


def _for_federations(recipe):
    return lambda choice, federation: recipe(choice, context(federation))


biases = _for_federations(partners.biases)
precision = _for_federations(partners.precision)
radius = _for_federations(partners.radius)
sizes = _for_federations(partners.sizes)
weights = _for_federations(partners.weights)


def built(entry: Entry, federation: Federation):
    """The algorithm of an entry for a federation."""
    return build_algorithm(entry, ingredients.cached_ingredients(context(federation)))
