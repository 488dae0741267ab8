"""Claims about the beliefs of clients about each other."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from coterie.collaboration.beliefs import (
    Belief,
    Trust,
    estimate,
    estimated_precision,
    learn,
    no_belief,
    own_statistics,
)
from coterie.types import Comparison

REAL = torch.float64
N, D, M = 3, 4, 8  # clients, parameters, samples of each comparison
NOISE = torch.tensor([0.5, 1.0, 2.0], dtype=REAL)  # total variance of one sample


def gradients() -> torch.Tensor:
    """The true gradients mu[i, k] of client k at model i."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(N, N, D, generator=rng, dtype=REAL)


def compared(
    mu: torch.Tensor,
    noise: torch.Tensor,
    rng: torch.Generator,
    known: torch.Tensor | None = None,
) -> Comparison:
    """A comparison of gradients with normal noise, written out from its definition.

    The noise of a client's half is the same at every model, as that of a linear shift.
    """
    n, d = len(mu), mu.shape[2]
    deviation = (noise / d / (M / 2)).sqrt()[:, None]  # of a half of M / 2 samples
    a = mu + deviation * torch.randn(n, d, generator=rng, dtype=REAL)
    b = mu + deviation * torch.randn(n, d, generator=rng, dtype=REAL)
    own_a, own_b = a[range(n), range(n)], b[range(n), range(n)]
    u, v = own_a[:, None] - a, own_b[:, None] - b
    both = (a + b) / 2
    if known is None:
        known = torch.ones(n, n, dtype=torch.bool)
    return Comparison(
        (u * v).sum(2),
        (own_a * own_b).sum(1),
        ((u + v) / 2).square().sum(2),
        both[range(n), range(n)].square().sum(1),
        ((own_a - own_b)[:, None] * (a - b)).sum(2),
        (own_a - own_b).square().sum(1) * M / 4,
        torch.full((n,), float(M), dtype=REAL),
        known,
    )


def start(n: int = N) -> Belief:
    return no_belief(torch.zeros(n, D, dtype=REAL))


def agree(values: torch.Tensor, expected: torch.Tensor) -> None:
    # Five standard errors of every mean: level 6e-7 each. The floor is for the
    # diagonal, where a difference with oneself is zero but for rounding.
    error = 5 * values.std(0) / len(values) ** 0.5 + 1e-12
    assert ((values.mean(0) - expected).abs() < error).all()


def learned(split: bool, repetitions: int = 200) -> list[Belief]:
    rng = torch.Generator().manual_seed(1)
    return [
        learn(
            start(),
            compared(gradients(), NOISE, rng),
            split=split,
            memory=0.0,
            confidence=0.0,
        )
        for _ in range(repetitions)
    ]


@pytest.mark.parametrize("split", [True, False], ids=["split", "plain"])
def test_split_estimates_are_unbiased_and_plain_ones_too_large_by_the_noise(split):
    beliefs = learned(split)
    mu = gradients()
    own = mu[range(N), range(N)]
    # E Z_ik = |.|^2 + (s_i + s_k) / m and E Z_i = |.|^2 + s_i / m, with m samples.
    noise = torch.zeros(N, dtype=REAL) if split else NOISE / M
    bias = (noise[:, None] + noise) * (1 - torch.eye(N, dtype=REAL))
    distance = (own[:, None] - mu).square().sum(2)
    agree(torch.stack([b.distance for b in beliefs]), distance + bias)
    agree(torch.stack([b.own for b in beliefs]), own.square().sum(1) + noise)


def test_the_noise_of_a_sample_is_estimated_without_bias():
    agree(torch.stack([b.variance for b in learned(split=True)]), NOISE)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_the_noise_of_a_sample_is_unbiased_also_where_halves_are_unequal(m):
    """Over all ways to draw m of five samples: the variance with n - 1."""
    g = torch.randn(5, D, generator=torch.Generator().manual_seed(7), dtype=REAL)
    drawn = torch.stack([g[list(p)] for p in itertools.permutations(range(5), m)])
    a, b = drawn[:, : m // 2].mean(1), drawn[:, m // 2 :].mean(1)
    found = own_statistics((a, b, torch.full((len(a),), float(m), dtype=REAL)))
    assert_close(found[2].mean(), g.var(0).sum(), rtol=1e-12, atol=0)
    assert_close(found[1], drawn.mean(1).square().sum(1), rtol=1e-12, atol=1e-12)


def history(rounds: int = 6) -> list[Comparison]:
    """Comparisons in which different clients take part."""
    rng = torch.Generator().manual_seed(2)
    active = [[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]]
    out = []
    for row in active[:rounds]:
        who = torch.tensor(row, dtype=torch.bool)
        out.append(compared(gradients(), NOISE, rng, who[:, None] & who))
    return out


def hand_averages(
    seen: list[Comparison], memory: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means with weights memory^age, where age counts the later known comparisons."""

    def mean(values: list[float]) -> float:
        weights = [memory**age for age in reversed(range(len(values)))]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    distance, own = torch.zeros(N, N, dtype=REAL), torch.zeros(N, dtype=REAL)
    for i in range(N):
        own[i] = mean([float(s.own[i]) for s in seen if s.known[i, i]])
        for k in range(N):
            known = [s.cross[i, k] for s in seen if s.known[i, k]]
            distance[i, k] = mean([float(value) for value in known])
    return distance, own


def test_averages_over_time_equal_a_loop_by_hand():
    belief = start()
    for seen in history():
        belief = learn(belief, seen, split=True, memory=0.8, confidence=0.0)
    distance, own = hand_averages(history(), 0.8)
    # A dozen operations in double precision.
    close = {"rtol": 1e-12, "atol": 1e-12}
    assert_close(belief.distance / belief.mass, distance, **close)
    assert_close(belief.own / belief.mass.diagonal(), own, **close)
    expected = (1 - distance / own[:, None]).clamp(0, 1)
    expected.fill_diagonal_(1)
    assert (own > 0).all()
    assert_close(belief.ratio, expected, **close)
    assert_close(estimate(belief)[0], 1 - distance / own[:, None], **close)


def test_without_memory_only_the_newest_comparison_counts():
    first, last = history()[0], history()[-1]
    belief = learn(start(), first, split=True, memory=0.0, confidence=0.0)
    belief = learn(belief, last, split=True, memory=0.0, confidence=0.0)
    alone = learn(start(), last, split=True, memory=0.0, confidence=0.0)
    assert_close(belief.ratio, alone.ratio, rtol=0, atol=0)
    assert_close(belief.distance, last.cross, rtol=0, atol=0)


def test_no_confidence_needed_means_the_newest_average_is_believed():
    belief = start()
    for seen in history():
        before = belief
        belief = learn(belief, seen, split=True, memory=0.5, confidence=0.0)
        newest = estimate(belief)[0].clamp(0, 1)
        off = ~torch.eye(N, dtype=torch.bool)
        changed = seen.known & off
        assert_close(belief.ratio[changed], newest[changed], rtol=0, atol=1e-15)
        kept = ~seen.known & off
        assert torch.equal(belief.ratio[kept], before.ratio[kept])


def test_endless_confidence_keeps_the_first_belief():
    belief = first = None
    for seen in history():
        belief = learn(
            belief or start(), seen, split=True, memory=0.5, confidence=math.inf
        )
        first = first or belief
    assert torch.equal(belief.ratio, first.ratio)
    assert not torch.equal(belief.distance, first.distance)


def test_a_pair_that_is_compared_late_is_believed_at_once():
    active = torch.tensor([True, False, True])
    rng = torch.Generator().manual_seed(3)
    some = compared(gradients(), NOISE, rng, active[:, None] & active)
    everybody = compared(gradients() / 4 + 1, NOISE / 100, rng)
    belief = learn(start(), some, split=True, memory=0.5, confidence=math.inf)
    assert torch.equal(belief.ratio[1], torch.tensor([0.0, 1.0, 0.0], dtype=REAL))
    later = learn(belief, everybody, split=True, memory=0.5, confidence=math.inf)
    assert_close(later.ratio[1], estimate(later)[0][1].clamp(0, 1), rtol=0, atol=1e-15)
    assert (later.ratio[1] > 0).all()


def test_pairs_that_took_no_part_keep_everything_that_was_believed():
    rng = torch.Generator().manual_seed(4)
    belief = learn(
        start(), compared(gradients(), NOISE, rng), split=True, memory=0.8, confidence=0
    )
    active = torch.tensor([True, True, False])
    pair = active[:, None] & active
    seen = compared(gradients() + 1, NOISE, rng, pair)
    later = learn(belief, seen, split=True, memory=0.8, confidence=0)
    for name in ("distance", "mass", "squares", "ratio"):
        old, new = getattr(belief, name), getattr(later, name)
        assert torch.equal(new[~pair], old[~pair]), name
    for name in ("own", "noise", "variance"):
        assert getattr(later, name)[2] == getattr(belief, name)[2], name


def test_the_standard_error_covers_the_spread_of_the_estimates():
    n = 8
    rng = torch.Generator().manual_seed(5)
    centre = torch.tensor([2.0, 1.0, 0.0, 0.0], dtype=REAL)
    mu = centre + 0.3 * torch.randn(n, n, D, generator=rng, dtype=REAL)
    noise = torch.ones(n, dtype=REAL)
    ratios, errors = [], []
    for _ in range(300):
        belief = start(n)
        for _ in range(3):
            belief = learn(
                belief, compared(mu, noise, rng), split=True, memory=0.8, confidence=0
            )
        ratio, error = estimate(belief)
        ratios.append(ratio)
        errors.append(error)
    off = ~torch.eye(n, dtype=torch.bool)
    spread = torch.stack(ratios).std(0)[off]
    typical = torch.stack(errors).mean(0)[off]
    # The spread itself is known to 1 / sqrt(2 * 300), about 4 percent; three of these.
    assert (typical > spread * 0.88).all()
    # The bound replaces mu'S mu by |mu|^2 sqrt(tr S^2), here twice as large, and leaves
    # out that distance and own norm vary together.
    assert (typical < 4 * spread).all()


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("times", [1, 2, 7, 60])
def test_errors_shrink_as_those_of_an_exponential_average(memory, times):
    """Weights w_j = memory^j of equally noisy values: variance sum w^2 / (sum w)^2."""
    seen = history()[0]
    once = learn(start(), seen, split=True, memory=0.0, confidence=0.0)
    belief = start()
    for _ in range(times):
        belief = learn(belief, seen, split=True, memory=memory, confidence=0.0)
    w = torch.tensor([memory**j for j in range(times)], dtype=REAL)
    share = w.square().sum() / w.sum() ** 2
    if memory and times == 60:  # in the end
        assert float(share) == pytest.approx((1 - memory) / (1 + memory), rel=1e-4)
    # The same values again and again: estimates stay, and all that changes is how many
    # comparisons they are taken to rest on.
    assert_close(estimate(belief)[0], estimate(once)[0], rtol=1e-10, atol=1e-12)
    expected = share.sqrt() * estimate(once)[1]
    assert_close(estimate(belief)[1], expected, rtol=1e-10, atol=1e-12)


def test_the_variance_of_an_exponential_average_is_what_draws_show():
    draws = torch.randn(4000, 7, generator=torch.Generator().manual_seed(8), dtype=REAL)
    averages = torch.zeros(4000, dtype=REAL)
    mass = 0.0
    belief = start()
    for value in draws.T:
        averages, mass = 0.8 * averages + 0.2 * value, 0.8 * mass + 0.2
        belief = learn(belief, history()[0], split=True, memory=0.8, confidence=0.0)
    counted = float(belief.squares[0, 0] / belief.mass[0, 0] ** 2)
    # A variance of 4000 normal draws is known to sqrt(2 / 4000), here five of these.
    assert float((averages / mass).var()) == pytest.approx(counted, rel=0.12)


def test_where_the_own_gradient_is_lost_in_noise_nothing_is_said():
    seen = history()[0]
    lost = seen._replace(own=torch.tensor([-0.1, 1.0, 1.0], dtype=REAL))
    belief = learn(start(), lost, split=True, memory=0.0, confidence=0.5)
    assert torch.equal(belief.ratio[0], torch.tensor([1.0, 0.0, 0.0], dtype=REAL))
    assert estimate(belief)[1][0].isinf().all()


def test_one_client_alone_believes_in_itself():
    rng = torch.Generator().manual_seed(6)
    mu = torch.ones(1, 1, D, dtype=REAL)
    seen = compared(mu, NOISE[:1], rng)
    belief = learn(start(1), seen, split=True, memory=0.8, confidence=0.5)
    assert belief.ratio.tolist() == [[1.0]]


def test_without_confidence_a_meaningless_own_norm_gives_up_all_beliefs():
    mu, none = torch.ones(2, 2, D, dtype=REAL), torch.zeros(2, dtype=REAL)
    seen = compared(mu, none, torch.Generator())
    settings = {"split": True, "memory": 0.0, "confidence": 0.0}
    belief = learn(start(2), seen, **settings)
    assert torch.equal(belief.ratio, torch.ones(2, 2, dtype=REAL))
    belief = learn(belief, seen._replace(own=none - 1), **settings)
    assert torch.equal(belief.ratio, torch.eye(2, dtype=REAL))


def test_no_measurable_noise_gives_equal_precisions():
    belief = no_belief(torch.zeros(3, 2))._replace(mass=torch.ones(3, 3))
    assert torch.equal(estimated_precision(belief), torch.full((3,), 1e6))


def test_against_noise_a_common_part_of_gradients_makes_no_partners():
    """A part that all gradients share drops out of differences; it fills own norms."""
    rng = torch.Generator().manual_seed(0)
    apart = torch.eye(N, D, dtype=REAL)  # squared distances of 2, noise of at most 1/4
    mu = (10 + apart).expand(N, N, D)
    seen = [compared(mu, NOISE, rng) for _ in range(40)]
    taken = {}
    for against in ("gradient", "noise"):
        trust, belief = Trust(against=against, memory=0.9), no_belief(apart)
        for one in seen:
            belief = trust.learn(belief, one)
        taken[against] = belief.ratio
    assert (taken["gradient"] > 0.9).all()
    assert_close(taken["noise"], torch.eye(N, dtype=REAL))


def test_against_noise_twins_are_partners_where_gradients_vanish():
    rng = torch.Generator().manual_seed(0)
    trust, belief = (
        Trust(against="noise", memory=0.99, confidence=0.0),
        no_belief(torch.zeros(N, D, dtype=REAL)),
    )
    equal = torch.ones(N, dtype=REAL)
    for _ in range(500):
        seen = compared(torch.zeros(N, N, D, dtype=REAL), equal, rng)
        belief = trust.learn(belief, seen)
    # 1 - distance / noise, with a mean of 200 comparisons of D = 4 numbers: the product
    # of differences of halves has deviation 4 / M / sqrt(D), noise mean 1 / M. What the
    # first 300 add to the last 200 is little: .99^200 of all.
    assert (belief.ratio > 1 - 4 * (4 / 2) / 200**0.5).all()
