"""What each sample is worth in a measure of a client as a whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.models import MEASURES, OBJECTIVES, Objective, OfClient, step_of
from coterie.models.jackknife import outcomes, sample_values, steps

LABELLED = ["auc", "balanced_accuracy", "ece", "f1", "sensitivity", "specificity"]


def drawn(name: str, columns: int, n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(columns)
    outputs = torch.randn(n, columns, generator=rng, dtype=torch.float64)
    if name not in LABELLED:
        return outputs, torch.randn(n, columns, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, max(2, columns), (n,), generator=rng)
    if columns == 4:  # classes of one sample, and of none
        targets = torch.tensor([0] * 10 + [1] * 13 + [3])
    return outputs.round(decimals=1), targets  # with ties


BY_CLASS = ["auc", "balanced_accuracy", "sensitivity", "specificity"]


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("name", sorted({*LABELLED, "rmse", "r2"} - {"ece"}))
def test_values_are_those_of_leaving_each_sample_out(name: str, columns: int) -> None:
    outputs, targets = drawn(name, columns)
    of, n = MEASURES[name].measure, len(targets)
    rest = []
    for j in range(n):
        kept = [k for k in range(n) if k != j]
        rest.append(of.measure(outputs[kept], targets[kept]))
    whole = of.measure(outputs, targets)
    strata = [list(range(n))]
    if name in BY_CLASS and columns < 4:  # with four, a class has a single sample
        strata = [[j for j in range(n) if targets[j] == c] for c in (0, 1)]
    found = sample_values(name, of, outputs, targets)
    variance = 0.0  # of the stratified jackknife
    for stratum in strata:
        own = np.array([rest[j] for j in stratum])
        size = len(stratum)
        scale = math.sqrt(n * (n - 1) * (size - 1) / size)
        np.testing.assert_allclose(found[stratum], whole + scale * (own.mean() - own))
        variance += (size - 1) / size * ((own - own.mean()) ** 2).sum()
    assert found.mean() == pytest.approx(whole)
    assert found.var(ddof=1) / n == pytest.approx(variance)
    assert variance > 0


def test_the_variance_of_an_auc_is_delongs() -> None:
    outputs, targets = drawn("auc", 1, n=40)
    scores, ones = outputs[:, 0].numpy(), targets.numpy() == 1
    above = np.sign(scores[ones][:, None] - scores[~ones]) / 2 + 0.5
    by_one, by_zero = above.mean(1), above.mean(0)
    delong = by_one.var(ddof=1) / len(by_one) + by_zero.var(ddof=1) / len(by_zero)
    values = sample_values("auc", MEASURES["auc"].measure, outputs, targets)
    assert values.var(ddof=1) / 40 == pytest.approx(delong)


def test_the_variance_of_a_sensitivity_is_that_of_a_share() -> None:
    outputs, targets = drawn("sensitivity", 1)
    found = (outputs[targets == 1, 0] > 0).double().numpy()
    of = MEASURES["sensitivity"].measure
    values = sample_values("sensitivity", of, outputs, targets)
    assert values.var(ddof=1) / 24 == pytest.approx(found.var(ddof=1) / len(found))


def test_calibration_counts_what_a_sample_adds_to_its_bin_as_far_as_this_is_off() -> (
    None
):
    outputs, targets = drawn("ece", 1)
    chances = outputs[:, 0].sigmoid().tolist()
    added, bins = [], []
    for chance, label in zip(chances, targets.tolist(), strict=True):
        confidence = max(chance, 1 - chance)
        added.append(((chance > 0.5) == (label == 1)) - confidence)
        bins.append(math.ceil(10 * confidence))
    worth = []
    for j, place in enumerate(bins):
        mine = [a for a, other in zip(added, bins, strict=True) if other == place]
        slope = math.erf(sum(mine) / math.sqrt(sum(a * a for a in mine)))
        worth.append(slope * added[j])
    of = MEASURES["ece"].measure
    values = sample_values("ece", of, outputs, targets)
    whole = of.measure(outputs, targets)
    np.testing.assert_allclose(values, whole + np.array(worth) - np.mean(worth))


def test_of_calibration_the_variance_is_about_right_where_gaps_are_chance() -> None:
    """Models that say the truth: every gap is chance, and has no sign of its own."""
    rng = torch.Generator().manual_seed(0)
    of, wholes, variances = MEASURES["ece"].measure, [], []
    for _ in range(400):
        outputs = torch.randn(60, 1, generator=rng, dtype=torch.float64)
        targets = (torch.rand(60, generator=rng) < outputs[:, 0].sigmoid()).long()
        wholes.append(of.measure(outputs, targets))
        variances.append(sample_values("ece", of, outputs, targets).var(ddof=1) / 60)
    # Leaving samples out gives twice the variance.
    assert np.mean(variances) == pytest.approx(np.var(wholes), rel=0.25)


def test_what_is_undefined_without_a_sample_rests_on_it() -> None:
    outputs = torch.tensor([[3.0], [1.0], [-1.0], [-2.0]], dtype=torch.float64)
    targets = torch.tensor([1, 0, 0, 0])
    values = sample_values("auc", MEASURES["auc"].measure, outputs, targets)
    # AUC is 1, also without any 0, and 0 without the only 1: mean of the rest 3 / 4.
    np.testing.assert_allclose(values, 1 + 3 * (0.75 - np.array([0, 1, 1, 1])))
    single = sample_values("rmse", MEASURES["rmse"].measure, outputs[:1], outputs[1:2])
    np.testing.assert_allclose(single, [2.0])
    nothing = sample_values("auc", MEASURES["auc"].measure, outputs, targets * 0)
    assert np.isnan(nothing).all()


def own(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    if len(targets) == 3 and targets.sum() == 0:
        raise ValueError("a class is missing")
    return float(outputs[targets == 1].mean())


def test_ones_own_measure_may_refuse_to_go_without_a_sample() -> None:
    outputs = torch.tensor([[4.0], [1.0], [1.0], [1.0]])
    values = sample_values("own", OfClient(own), outputs, torch.tensor([1, 0, 0, 0]))
    np.testing.assert_allclose(values, 4 + 3 * (3 - np.array([0, 4, 4, 4])))


@pytest.mark.parametrize(
    ("name", "ones", "zeros"),
    [
        ("sensitivity", 1 / 4, 0),
        ("f1", 1 / 6, 0),
        ("specificity", 0, 1 / 6),
        ("balanced_accuracy", 1 / 8, 1 / 12),
        ("auc", 1 / 8, 1 / 12),
    ],
)
def test_steps_are_those_of_the_class_that_counts(
    name: str, ones: float, zeros: float
) -> None:
    targets = torch.tensor([1] * 4 + [0] * 6)
    for columns in (1, 2):
        found = steps(MEASURES[name].measure, torch.zeros(10, columns), targets)
        np.testing.assert_allclose(found, [ones] * 4 + [zeros] * 6)


def test_outcomes_hold_single_samples_wholes_and_steps() -> None:
    rows = [drawn("auc", 1), drawn("auc", 1)]
    found = outcomes(OBJECTIVES["binary"], rows, 48)
    assert set(found) == {"loss", "accuracy", "auc", step_of("auc")}
    assert all(len(values) == 48 for values in found.values())
    mine = Objective(OBJECTIVES["binary"].loss, {"own": OfClient(own)})
    assert set(outcomes(mine, rows, 48)) == {"loss", "own"}
    # Asking one's own measure without each of so many samples would take too long.
    assert set(outcomes(mine, rows, 10_001)) == {"loss"}
    assert math.isfinite(float(outcomes(mine, rows, 48)["own"].sum()))
