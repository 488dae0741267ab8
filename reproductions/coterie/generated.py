"""Federations that need no images: quantities, two classes, words, and a table.

Everything is drawn from the generator that a family hands over. Clients have as many
test samples as it takes to judge each of them, since they cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from .drafts import Draft, dirichlet

Source = Callable[[np.random.Generator], Draft]

TESTS = 100
"""Test samples of each client."""


def _parts(clients: int, train: int, held: int) -> tuple[np.ndarray, np.ndarray]:
    """The client and the role of each sample."""
    role = np.repeat([0, 1, 2], [train, held, TESTS])
    return np.repeat(np.arange(clients), len(role)), np.tile(role, clients)


def _draft(
    rng: np.random.Generator,
    features: np.ndarray,
    targets: np.ndarray,
    owner: np.ndarray,
    role: np.ndarray | None,
    groups: np.ndarray | None,
    task: str,
    outputs: int = 1,
) -> Draft:
    real = task == "regression"
    return Draft(
        torch.from_numpy(features.astype(np.float32)),
        torch.from_numpy(targets.astype(np.float32 if real else np.int64)),
        torch.from_numpy(owner),
        None if groups is None else torch.from_numpy(groups),
        rng,
        None if role is None else torch.from_numpy(role),
        task,
        outputs,
    )


def _directions(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Random vectors of length 1."""
    found = rng.normal(size=(count, dimension))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def regression(
    groups: Callable[[int], np.ndarray],
    *,
    clients: int = 24,
    dimension: int = 10,
    train: int = 30,
    held: int = 10,
    noise: float = 0.5,
) -> Source:
    """Linear models of the groups, y = <x, theta> + noise N(0, 1).

    Features are N(0, I) and models of length 1, so that the best R2 is
    1 / (1 + noise^2).
    """

    def draw(rng: np.random.Generator) -> Draft:
        member = groups(clients)
        theta = _directions(rng, member.max() + 1, dimension)
        return _linear(rng, theta[member], member, train, held, noise)

    return draw


def soft_groups(clients: int = 24, dimension: int = 10) -> Source:
    """Linear models that are mixtures of two, with shares uniform between 0 and 1."""

    def draw(rng: np.random.Generator) -> Draft:
        first, second = _directions(rng, 2, dimension)
        share = rng.random(clients)[:, None]
        return _linear(rng, share * first + (1 - share) * second, None, 30, 10, 0.5)

    return draw


def _linear(
    rng: np.random.Generator,
    theta: np.ndarray,  # (N, d)
    groups: np.ndarray | None,
    train: int,
    held: int,
    noise: float,
) -> Draft:
    owner, role = _parts(len(theta), train, held)
    x = rng.normal(size=(len(owner), theta.shape[1]))
    y = (x * theta[owner]).sum(1) + noise * rng.normal(size=len(owner))
    return _draft(rng, x, y, owner, role, groups, "regression")


def two_classes(*, clients: int, dimension: int, train: int, held: int) -> Source:
    """Two groups, in each of which one direction decides between two classes.

    The chance of class 1 is logistic in 4 <x, w> with w of length 1.
    """

    def draw(rng: np.random.Generator) -> Draft:
        member = np.arange(clients) % 2
        w = _directions(rng, 2, dimension)
        owner, role = _parts(clients, train, held)
        x = rng.normal(size=(len(owner), dimension))
        logit = 4 * (x * w[member[owner]]).sum(1)
        y = rng.random(len(owner)) < 1 / (1 + np.exp(-logit))
        return _draft(rng, x, y, owner, role, member, "binary")

    return draw


STRONG, WEAK, SMALL = 5, 15, 0.1
"""Features that all groups share, those in which groups differ, and their scale."""


def late_groups(clients: int = 24, train: int = 40, held: int = 10) -> Source:
    """Four classes: strong features tell two pairs apart, weak ones the two of a pair.

    In the second group the two classes of a pair have each other's names. Weak features
    are small, so models begin with the strong ones, which all clients agree on.
    """

    def draw(rng: np.random.Generator) -> Draft:
        member = np.arange(clients) % 2
        owner, role = _parts(clients, train, held)
        pair, which = rng.integers(0, 2, (2, len(owner)))
        strong = rng.normal(size=(len(owner), STRONG)) + (2 * pair[:, None] - 1)
        weak = rng.normal(size=(len(owner), WEAK)) + 0.6 * (2 * which[:, None] - 1)
        x = np.concatenate([strong, SMALL * weak], 1)
        y = 2 * pair + (which ^ member[owner])
        return _draft(rng, x, y, owner, role, member, "classification", 4)

    return draw


def words(clients: int = 20, documents: int = 90, alpha: float = 0.4) -> Source:
    """Documents of 5 topics in 300 words, 30 in each, as log(1 + counts).

    Topics have frequent words of their own; 7 of 10 words are of a common background.
    """
    topics, vocabulary = 5, 300

    def draw(rng: np.random.Generator) -> Draft:
        own = rng.dirichlet([0.2] * vocabulary, topics)
        common = rng.dirichlet([0.5] * vocabulary)
        y = rng.integers(0, topics, clients * documents)
        length = 1 + rng.poisson(30, len(y))
        x = np.log1p(rng.multinomial(length, (0.3 * own + 0.7 * common)[y]))
        owner = dirichlet(y, clients, alpha, rng)
        return _draft(rng, x, y, owner, None, None, "classification", topics)

    return draw


def table(clients: int = 10, alpha: float = 0.4) -> Source:
    """Breast cancer as it comes with scikit-learn: 569 rows of 30 scaled columns."""

    def draw(rng: np.random.Generator) -> Draft:
        from sklearn.datasets import load_breast_cancer

        x, y = load_breast_cancer(return_X_y=True)
        order = rng.permutation(len(y))
        x, y = ((x - x.mean(0)) / x.std(0))[order], y[order]
        owner = dirichlet(y, clients, alpha, rng)
        return _draft(rng, x, y, owner, None, None, "binary")

    return draw
