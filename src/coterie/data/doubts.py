"""What is odd about data, in sentences, before anybody trains on them.

Columns are judged by training data alone; of other parts only the labels are looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models import OBJECTIVES
from .federation import Federation
from .fitting import samples_of
from .looking.units import other_units, unit_note
from .preparation import Column

_APART = 30.0
"""Features whose sizes differ by more train badly, a bias of 1 among them."""

FEWEST = 20
"""With fewer samples a column may fit the labels by chance."""


def doubts(federation: Federation) -> list[str]:
    """One sentence for each oddity of the data of those who train."""
    index, owner = samples_of(federation.train)
    labels = federation.targets[index]
    columns, values = _columns(federation)
    found = []
    if columns:
        values = values[index].double()
        found = [
            *_other_units(federation, columns, values, owner),
            _unlike_sizes(federation, columns, values),
            _constant(columns, values),
            _telling(federation, columns, values, labels),
            *_nearly_telling(federation, columns, values, labels),
        ]
    if OBJECTIVES[federation.task].labelled:
        found += [_unlearnt(federation), _unlearnt_at_home(federation)]
    if federation.left_out:
        found.append(f"left out as too small: {', '.join(federation.left_out)}.")
    return [sentence for sentence in found if sentence]


def _columns(federation: Federation) -> tuple[tuple[Column, ...], Tensor]:
    """The columns as they were read, and their values (M, C)."""
    if federation.schema is not None and federation.raw is not None:
        return federation.schema.columns, federation.raw
    return tuple(map(Column, federation.columns)), federation.features


def _unlike_sizes(
    federation: Federation, columns: tuple[Column, ...], values: Float[Tensor, "m c"]
) -> str:
    """Features that would not train as they are."""
    schema = federation.schema
    if schema is not None and schema.scale != "none":
        return ""
    sizes: dict[str, float] = {}
    for column, some in zip(columns, values.T, strict=True):
        there = some[~some.isnan()]
        truth = ((there == 0) | (there == 1)).all()
        if column.categories is None and len(there) and not truth:
            sizes[column.name] = float(there.square().mean().sqrt())
    large = max(sizes, key=lambda name: sizes[name], default="")
    small = min(sizes, key=lambda name: sizes[name], default="")
    if not sizes or max(1.0, sizes[large]) <= _APART * min(1.0, sizes[small]):
        return ""
    return (
        f"features of `{federation.name}` will train badly as they are: {large!r} is "
        f"about {sizes[large]:.3g} and {small!r} about {sizes[small]:.3g}, where 1 is "
        "best; set data.scale to 'agreed' or 'client'."
    )


def _other_units(
    federation: Federation,
    columns: tuple[Column, ...],
    values: Float[Tensor, "m c"],
    owner: Int[Tensor, " m"],
) -> list[str]:
    """Columns that some client seems to measure in another unit, at most five."""
    found = []
    for column, some in zip(columns, values.T, strict=True):
        if column.categories is None and not column.date:
            odd = other_units(some.numpy(), owner.numpy())
            for place, times in odd.items():
                who = federation.name_of(place)
                found.append(f"{unit_note(column.name, times, who)}.")
    return found[:5]


def _constant(columns: tuple[Column, ...], values: Float[Tensor, "m c"]) -> str:
    """Columns that say nothing."""
    names = []
    for column, some in zip(columns, values.T, strict=True):
        there = some[~some.isnan()]
        if not len(there) or bool((there == there[0]).all()):
            names.append(column.name)
    if not names:
        return ""
    return f"{_called(names)} the same in all training data and can be left out."


def _telling(
    federation: Federation,
    columns: tuple[Column, ...],
    values: Float[Tensor, "m c"],
    labels: Tensor,
) -> str:
    """Columns that give the label away."""
    if len(labels) < FEWEST or labels.ndim > 1 or len(labels.unique()) < 2:
        return ""
    tells = gives_away if OBJECTIVES[federation.task].labelled else repeats
    names = [c.name for c, v in zip(columns, values.T, strict=True) if tells(v, labels)]
    if not names:
        return ""
    return (
        f"{_called(names)} enough to know the label of every training sample: where a "
        "column is known only after the label, leave it out by data.drop."
    )


def gives_away(values: Float[Tensor, " m"], labels: Int[Tensor, " m"]) -> bool:
    """Whether a column determines the labels, not by being different everywhere.

    Either few values do, with all but a hundredth of the entropy of the labels as
    mutual information, or in the order of values every class is one stretch.
    """
    values = values.nan_to_num(torch.inf)  # a gap may tell, too
    kinds, code = values.unique(return_inverse=True)
    classes, label = labels.unique(return_inverse=True)
    if len(kinds) < 2:
        return False
    if len(kinds) <= max(2, len(values) // 10):
        place = code * len(classes) + label
        counts = torch.bincount(place, minlength=len(kinds) * len(classes))
        joint = counts.reshape(len(kinds), len(classes)).double() / len(values)
        entropy = _entropy(joint.sum(0))
        return entropy + _entropy(joint.sum(1)) - _entropy(joint) >= 0.99 * entropy
    order = values.argsort(stable=True)
    sorted_labels, sorted_values = label[order], values[order]
    changes = sorted_labels[1:] != sorted_labels[:-1]
    apart = sorted_values[1:] != sorted_values[:-1]
    return int(changes.sum()) < len(classes) and bool((apart | ~changes).all())


def repeats(values: Float[Tensor, " m"], targets: Tensor) -> bool:
    """Whether a column is a straight line of the targets."""
    if values.isnan().any() or values.std() == 0:
        return False
    a, b = values - values.mean(), targets.double() - targets.double().mean()
    return abs(float(a @ b)) > (1 - 1e-6) * float(a.norm() * b.norm())


def _nearly_telling(
    federation: Federation,
    columns: tuple[Column, ...],
    values: Float[Tensor, "m c"],
    labels: Tensor,
) -> list[str]:
    """Columns of a table that nearly give the label away, at most five."""
    if federation.schema is None or len(labels) < FEWEST or labels.ndim > 1:
        return []
    labelled = OBJECTIVES[federation.task].labelled
    tells = gives_away if labelled else repeats
    notes = [
        disguise_note(column.name, some, labels, labelled=labelled)
        for column, some in zip(columns, values.T, strict=True)
        if not tells(some, labels)
    ]
    advice = "leave it out by data.drop if it is known only after the label."
    return [f"{note}: {advice}" for note in notes if note][:5]


def disguise_note(
    column: str, values: Float[Tensor, " m"], labels: Tensor, *, labelled: bool
) -> str:
    """What a column says of the target that seems too good to be true, in words.

    Nothing where the column is an ordinary one. What tells everything is found by
    `gives_away` and `repeats`.
    """
    start = f"column {column!r} alone tells the"
    if not labelled:
        like = rank_correlation(values, labels)
        if like < _LIKE:
            return ""
        return f"{start} order of the targets (rank correlation {like:.3f})"
    wrong, usual = least_wrong(values, labels)
    kinds, classes = len(values.nan_to_num(torch.inf).unique()), len(labels.unique())
    # Of as many values as classes, and gaps, a column may well be another coding.
    coded = kinds <= classes + 1
    most, share = (0.05, 0.3) if coded else (0.03, 0.1)
    if not usual or wrong > min(most, share * usual):
        return ""
    return f"{start} target of {100 * (1 - wrong):.1f} % of rows"


_LIKE = 0.99
"""A rank correlation above that is one of two measurements of the same thing."""


def rank_correlation(values: Float[Tensor, " m"], targets: Tensor) -> float:
    """How alike the orders of two columns are, from 0 to 1, where both have values."""
    both = ~(values.isnan() | targets.isnan())
    if int(both.sum()) < max(FEWEST, len(values) // 2):
        return 0.0
    a, b = (_ranks(some[both].double()) for some in (values, targets))
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return abs(float(a @ b)) / size if size else 0.0


def _ranks(values: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """The places of values in their order; equal values share theirs."""
    _, code, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts.double() - 1) / 2)[code]


def least_wrong(
    values: Float[Tensor, " m"], labels: Int[Tensor, " m"]
) -> tuple[float, float]:
    """The share of labels that a column gets wrong, and that a constant does.

    The column predicts by the most frequent class of each value, where there are few,
    or by a stretch of values for each class, whichever is better.
    """
    values = values.nan_to_num(torch.inf)
    classes, label = labels.unique(return_inverse=True)
    kinds, code = values.unique(return_inverse=True)
    usual = 1 - float(label.bincount().max()) / len(label)
    found = [float((_stretches(values, label, len(classes)) != label).double().mean())]
    if len(kinds) <= max(2, len(values) // 10):
        place = code * len(classes) + label
        counts = place.bincount(minlength=len(kinds) * len(classes))
        right = counts.reshape(len(kinds), len(classes)).amax(1).sum()
        found.append(1 - float(right) / len(label))
    return min(found), usual


def _stretches(
    values: Float[Tensor, " m"], label: Int[Tensor, " m"], classes: int
) -> Int[Tensor, " m"]:
    """Classes in the order of their medians, each from the best border to the next."""
    middle = [float(values[label == c].median()) for c in range(classes)]
    order = sorted(range(classes), key=lambda c: middle[c])
    found = torch.full_like(label, order[0])
    for lower, upper in itertools.pairwise(order):
        mine = (label == lower) | (label == upper)
        some, place = values[mine].sort()
        # Below a border, one of the upper class is wrong and one of the lower right.
        step = torch.where(label[mine][place] == upper, 1, -1)
        errors = torch.cat([step.new_zeros(1), step.cumsum(0)])[:-1].double()
        errors[1:][some[1:] == some[:-1]] = torch.inf
        border = some[errors.argmin()]
        found[values >= border] = upper
    return found


def _entropy(shares: Float[Tensor, "*k"]) -> float:
    return float(-torch.special.xlogy(shares, shares).sum())


def _unlearnt(federation: Federation) -> str:
    """Classes that nobody trains on."""
    train, _ = samples_of(federation.train)
    known = federation.targets[train].unique()
    parts = (federation.validation, federation.test)
    index = torch.cat([samples_of(part)[0] for part in parts])
    other = federation.targets[index].unique()
    new = other[~torch.isin(other, known)].tolist()
    if not new:
        return ""
    words = [federation.classes[c] if federation.classes else str(c) for c in new]
    return (
        f"nobody trains on class {_few(words)}, which validation or test data have: "
        "it cannot be learnt."
    )


def _unlearnt_at_home(federation: Federation) -> str:
    """Natural clients who are tested on classes that they do not train on."""
    if not federation.names:
        return ""
    classes = int(federation.targets.max()) + 1
    trained, tested = (
        torch.zeros(len(federation), classes, dtype=torch.bool) for _ in range(2)
    )
    for seen, part in ((trained, federation.train), (tested, federation.test)):
        index, owner = samples_of(part)
        seen[owner, federation.targets[index]] = True
    who = (tested & ~trained).any(1).nonzero()[:, 0].tolist()
    if not who:
        return ""
    names = _few(map(federation.name_of, who))
    return (
        f"{len(who)} of {len(federation)} clients ({names}) are tested on classes that "
        "their own training data lack, which training alone cannot learn."
    )


def of_one_class(federation: Federation) -> list[str]:
    """Clients who train on one class, from which nothing can be learnt, by name."""
    if not OBJECTIVES[federation.task].labelled:
        return []
    index, owner = samples_of(federation.train)
    classes = int(federation.targets.max()) + 1
    pairs = torch.unique(owner * classes + federation.targets[index]) // classes
    few = torch.bincount(pairs, minlength=len(federation)) == 1
    return [federation.name_of(place) for place in few.nonzero()[:, 0].tolist()]


def _called(names: list[str]) -> str:
    if len(names) == 1:
        return f"column {names[0]!r} is"
    return f"columns {_few(map(repr, names))} are each"


def _few(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    more = [f"{len(listed) - most} more"] if len(listed) > most else []
    return ", ".join([*listed[:most], *more])
