"""What the study says about the data, so that no site has to tell it.

Without `[privacy]`, sites agree on classes, words of categories, means and deviations
by asking each other. All of that is made of data, so with `[privacy]` it would cost
epsilon. There, the study says it in `[sites]`, and nothing is asked:

- `classes` and `categories`: the words. A site with another word is refused at home,
  before it says anything.
- `ranges`: a number between low and high has the mean (low + high) / 2 and the
  deviation (high - low) / sqrt(12), as if all values in between were as frequent.

The numbers of samples of the sites are told in any case.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...checks import Problems, brief
from ...data.federation import Federation, Table
from ...data.fitting import Agreement, with_agreement
from ...data.preparation import Column, Unit
from ...models import OBJECTIVES
from ...study import Study
from ...study.settings.sites import Sites
from .site_data import description


def refuse_undeclared(study: Study, table: Table) -> None:
    """Refuses a private study that leaves to the data what it must say itself.

    Args:
        study: with [privacy].
        table: of this site.

    Raises:
        Problems: everything that is missing, and every word that is not declared.
    """
    sites, problems = study.sites, list[str]()
    if OBJECTIVES[table.task].labelled:
        problems += _problems_of_classes(sites, table)
    schema = table.schema
    columns = () if schema is None else schema.columns
    for column in columns:
        problems += _problems_of_column(sites, column, table)
    if schema is not None and schema.targets and target_name(study) not in sites.ranges:
        name = target_name(study)
        problems.append(
            f"with [privacy], `sites.ranges` must have {brief(name)}, the target, or "
            "set `data.scale_target = false`."
        )
    if table.targets.dim() > 1 and table.targets.shape[1] > 1:
        problems.append("with [privacy], a site can predict one quantity only.")
    known = {column.name for column in columns} | {target_name(study)}
    for key in ("categories", "ranges"):
        for name in getattr(sites, key):
            if columns and name not in known:
                problems.append(f"`sites.{key}` names {brief(name)}, but no column is.")
    if problems:
        raise Problems(problems)


def _problems_of_classes(sites: Sites, table: Table) -> list[str]:
    if not sites.classes:
        return ["with [privacy], `sites.classes` must list the classes of the target."]
    if table.classes:
        more = [word for word in table.classes if word not in sites.classes]
        return [f"class {brief(word)} is not in `sites.classes`." for word in more]
    highest = int(table.targets.max())
    if highest >= len(sites.classes):
        return [f"class {highest} is not among the {len(sites.classes)} classes."]
    return []


def _problems_of_column(sites: Sites, column: Column, table: Table) -> list[str]:
    name, schema = column.name, table.schema
    assert schema is not None  # it has columns
    if column.categories is not None:
        declared = sites.categories.get(name)
        if declared is None:
            return [f"with [privacy], `sites.categories` must have column {name!r}."]
        more = [word for word in column.categories if word not in declared]
        return [
            f"{brief(word)} in column {name!r} is not in `sites.categories`."
            for word in more
        ]
    if schema.scale == "agreed" and name not in sites.ranges:
        return [
            f"with [privacy], `sites.ranges` must have column {name!r}, or set "
            "`data.scale` to 'client' or 'none'."
        ]
    return []


def target_name(study: Study) -> str:
    """The name of the column to predict."""
    return str(study.data.get("target", "target"))


def declared_description(sites: Sites, table: Table) -> dict[str, Any]:
    """What all sites would tell, as the study says it; see `description`."""
    told = description(table)
    if table.classes:
        told["classes"] = list(sites.classes)
    elif told["highest"] >= 0 and OBJECTIVES[table.task].labelled:
        told["highest"] = len(sites.classes) - 1
    for column in told["columns"]:
        if column[1] is not None:
            column[1] = list(sites.categories[column[0]])
    return told


def with_declared_preparation(own: Federation, study: Study) -> Federation:
    """The federation of a site with features prepared as the study says."""
    schema, sites = own.schema, study.sites
    assert schema is not None  # only called with raw columns
    mean, scale = torch.zeros(2, len(schema.columns), dtype=torch.float64)
    scale += 1.0
    if schema.scale == "agreed":
        for j, column in enumerate(schema.columns):
            if column.categories is None:
                mean[j], scale[j] = _mean_and_deviation(*sites.ranges[column.name])
    codes = tuple(
        None if c.categories is None else tuple(range(len(c.categories)))
        for c in schema.columns
    )
    shown = (schema.indicators,) * len(codes)
    unit = None
    if schema.targets:
        middle, deviation = _mean_and_deviation(*sites.ranges[target_name(study)])
        unit = Unit((middle,), (deviation,))
    return with_agreement(own, Agreement(codes, shown, mean, scale), unit)


def _mean_and_deviation(low: float, high: float) -> tuple[float, float]:
    """The mean and deviation of a uniform value."""
    return (low + high) / 2, (high - low) / math.sqrt(12)
