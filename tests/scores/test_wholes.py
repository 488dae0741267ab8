"""Intervals of measures of a client as a whole, and of newcomers, cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from coterie.models import MEASURES
from coterie.models.jackknife import sample_values, steps
from coterie.scores.intervals import (
    Trials,
    client_estimates,
    mean_estimate,
    newcomer_estimate,
)

REPETITIONS, CLIENTS, SAMPLES = 40, 8, 20
GAIN = np.linspace(-0.3, 0.7, CLIENTS)


def labels(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Of either class, at least three of each."""
    order = rng.random(shape).argsort(-1)
    ones = rng.binomial(SAMPLES - 6, 0.5, shape[:-1]) + 3
    return (order < ones[..., None]).astype(int)


def margins(
    rng: np.random.Generator, seeds: int, shared: bool, spread: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two margins of samples, (seeds, repetitions, clients, samples), and labels."""
    whole = (seeds, REPETITIONS, CLIENTS, SAMPLES)
    shape = (1, *whole[1:]) if shared else whole
    hard, liked = rng.normal(size=shape), rng.normal(size=shape)
    moved = rng.normal(size=(*whole[:2], 1, 1)) + rng.normal(size=(*whole[:3], 1))
    first = 0.3 + hard + 0.5 * rng.normal(size=whole)
    second = 0.3 + hard + GAIN[:, None] + liked + spread * moved
    second = second + 0.5 * rng.normal(size=whole)
    return first, second, np.broadcast_to(labels(rng, shape), whole)


def truths(name: str, spread: float) -> np.ndarray:
    """What clients are to expect of the second over the first."""
    moved = 2 * spread**2
    if name == "auc":  # of a pair, both margins must be large enough together
        first = ndtr(2 * 0.3 / (2 * 1.25) ** 0.5)
        return ndtr(2 * (0.3 + GAIN) / (2 * 2.25 + 4 * moved) ** 0.5) - first
    if name in ("sensitivity", "balanced_accuracy"):
        return ndtr((0.3 + GAIN) / (2.25 + moved) ** 0.5) - ndtr(0.3 / 1.25**0.5)
    assert not spread  # of the root of a mean square, without seeds that move it
    draws = np.random.default_rng(1).normal(size=(20_000, SAMPLES))
    first, *second = (
        np.sqrt(((middle + wide**0.5 * draws) ** 2).mean(1)).mean()
        for middle, wide in ((0.3, 1.25), *((0.3 + gain, 2.25) for gain in GAIN))
    )
    return np.array(second) - first


def covered(name: str, seeds: int, shared: bool, spread: float) -> tuple[float, float]:
    """How often intervals hold the truth: of clients, and of their mean."""
    rng = np.random.default_rng([seeds, shared, int(10 * spread)])
    first, second, label = margins(rng, seeds, shared, spread)
    of, signs = MEASURES[name].measure, 2 * label - 1
    values, step = np.empty(first.shape), np.empty(first.shape)
    for place in np.ndindex(first.shape[:-1]):
        pair = []
        for margin in (second[place], first[place]):
            if name == "rmse":
                outputs, targets = (
                    torch.from_numpy(margin)[:, None],
                    torch.zeros(SAMPLES, 1),
                )
            else:
                outputs = torch.from_numpy(signs[place] * margin)[:, None]
                targets = torch.from_numpy(label[place].copy())
            pair.append(sample_values(name, of, outputs, targets))
        values[place] = pair[0] - pair[1]
        step[place] = 1 / SAMPLES if name == "rmse" else steps(of, outputs, targets)
    seed, _, client, sample = np.indices(first.shape)
    sample = sample + SAMPLES * (client + CLIENTS * seed * (not shared))
    columns = (values, seed, client, sample)
    truth, one, whole = truths(name, spread), [], []
    for k in range(REPETITIONS):
        trials = Trials(*(column[:, k].ravel() for column in columns))
        trials = trials._replace(proportion=name != "rmse", step=step[:, k].ravel())
        single, mean = client_estimates(trials)[1], mean_estimate(trials)
        one.append(((single.low <= truth) & (truth <= single.high)).mean())
        whole.append(mean.low <= truth.mean() <= mean.high)
    return float(np.mean(one)), float(np.mean(whole))


# Samples and seeds together, seeds alone differing, and one seed; `docs/report.md` has
# more repetitions and measures.
DESIGNS = [(3, True, 0.2), (3, False, 0.2), (1, True, 0.0)]


@pytest.mark.parametrize("name", ["auc", "sensitivity", "rmse"])
def test_intervals_of_wholes_cover_the_truth(name: str) -> None:
    designs = DESIGNS if name != "rmse" else [(3, True, 0.0), (1, True, 0.0)]
    found = np.mean([covered(name, *design) for design in designs], axis=0)
    assert (0.9 <= found).all() and (found <= 0.99).all(), found


def test_intervals_of_newcomers_cover_what_a_newcomer_is_to_expect() -> None:
    """Every seed draws two of the clients there are, each worth something else."""
    rng = np.random.default_rng(0)
    inside, alone = [], []
    for _ in range(400):
        worth = (
            0.3 + 0.5 * rng.normal(size=(4, 2, 1)) + 0.2 * rng.normal(size=(4, 1, 1))
        )
        values = worth + rng.normal(size=(4, 2, 10))
        seed, place, _ = np.indices(values.shape)
        client, sample = place + 2 * seed, np.arange(values.size)
        parts = (values.ravel(), seed.ravel(), client.ravel(), sample)
        found = newcomer_estimate(Trials(*parts))
        inside.append(found.low <= 0.3 <= found.high)
        only = newcomer_estimate(Trials(*(part[:20] for part in parts)))
        mean = worth[0].mean()  # with one seed, of its newcomers
        alone.append(only.low <= mean <= only.high)
    assert 0.9 <= np.mean(inside) <= 0.98
    assert 0.9 <= np.mean(alone) <= 0.98
