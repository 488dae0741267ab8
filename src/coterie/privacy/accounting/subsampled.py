"""What many noisy releases of random samples reveal about one sample.

In a minibatch, every sample takes part with chance q on its own (Poisson sampling). The
release has Gaussian noise of s times its sensitivity. The release reveals less than a
release of all data, because nobody knows whether a sample took part. The package
dp-accounting adds releases up, in one of two ways: by the distribution of privacy
losses ("pld", exact up to a fine grid, on the safe side), or by Renyi divergences
("rdp", faster, with a larger epsilon). `quick_epsilons` takes milliseconds. It uses the
closed form of Renyi divergences of whole orders a:

    R_a = log(sum_k binom(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 s^2))) / (a - 1),
    epsilon = min_a R_a + log(1 - 1 / a) - log(delta a) / (a - 1).

Two data sets are neighbours if they differ in one sample that counts as nothing in one
of them (zero-out, in dp-accounting `REPLACE_SPECIAL`). The number of samples of a
client is public.

A sample is either a training or a validation sample. So for any sample of a client,
epsilon is at most the larger of two epsilons, one for each part.

If a client answers several others in one event, it uses the same minibatch for all. So
K answers, each with its own noise (`apart`), count as one release with sqrt(K) times
the sensitivity.

References:
    Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, "Deep learning with
    differential privacy", CCS 2016, arXiv 1607.00133.
    Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic
    function", AISTATS 2022, arXiv 2106.08567.
    Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and private (deep)
    learning without sampling or shuffling", ICML 2021, arXiv 2103.00039 (zero-out).
    Mironov, Talwar, Zhang, "Renyi differential privacy of the sampled Gaussian
    mechanism", 2019, arXiv 1908.10530 (R_a).
    Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS
    2020, arXiv 2004.00010, Proposition 12 (epsilon).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from ...checks import InputError, integer, number, one_of
from .gaussian import NOISES, refuse_epsilon, refuse_noise
from .ledger import Ledger, Release, refuse_sizes

ACCOUNTANTS = ("pld", "rdp")

HOPELESS = 50.0
"""An epsilon that hides nothing. For a larger epsilon, the grid of privacy losses would
take minutes. Then we return Renyi's epsilon, which is larger."""

_GRID = 1e-3
"""Step of privacy losses, in units of the smaller of 1 and a bound on epsilon. A finer
one changes the fifth digit and takes seconds."""

_LEAST, _MOST = 1e-12, 1e12
"""Noise below `_LEAST` counts as none, and noise above `_MOST` counts as `_MOST`. Both
are on the safe side. Squares of values outside this range would overflow."""

_ORDERS = torch.tensor([*range(2, 65), 96, 128, 192, 256, 384, 512, 768, 1024]).double()

_SAME = 1 + 1e-9
"""Two noises count as equal up to this factor, because rounding may differ."""

Step = tuple[float, float, bool]
"""A kind of step: its noise in units of the sensitivity, the chance that a sample takes
part, and whether it uses validation samples. A step on training samples reveals nothing
of validation samples, and the other way round."""


def sampled_epsilons(
    ledger: Ledger, *, delta: float, accountant: str = "pld"
) -> Float64[Tensor, " n"]:
    """Each client's epsilon towards an observer of all its releases.

    Raises:
        InputError: if an event is not a release with noise of its own.
    """
    return epsilons_of_steps(steps_of(ledger), delta=delta, accountant=accountant)


def epsilons_of_steps(
    steps: Sequence[Mapping[Step, int]], *, delta: float, accountant: str = "pld"
) -> Float64[Tensor, " n"]:
    """Each client's epsilon, from how often it took each kind of step."""
    _refuse(delta, accountant)
    found = [_epsilon(tuple(sorted(s.items())), delta, accountant) for s in steps]
    return torch.tensor(found, dtype=torch.float64)


def quick_epsilons(
    steps: Sequence[Mapping[Step, int]], delta: float
) -> Float64[Tensor, " n"]:
    """Upper bounds on `epsilons_of_steps`, fast enough for every round."""
    found = [_quick_epsilon(tuple(sorted(s.items())), delta) for s in steps]
    return torch.tensor(found, dtype=torch.float64)


def sampled_epsilon(
    noise: float, *, delta: float, rate: float, steps: int, accountant: str = "pld"
) -> float:
    """The epsilon of this number of steps with this noise multiplier.

    Args:
        noise: standard deviation, in units of the clipping bound.
        delta: the delta of the promise, between 0 and 1.
        rate: the chance that a sample takes part in a step.
        steps: how many minibatches are released.
        accountant: `pld` or `rdp`.
    """
    refuse_noise("noise", noise)
    _refuse_steps(rate, steps)
    _refuse(delta, accountant)
    return _epsilon(_equal_steps(noise, rate, steps), delta, accountant)


def sampled_noise(
    epsilon: float, *, delta: float, rate: float, steps: int, accountant: str = "pld"
) -> float:
    """The smallest noise multiplier, to one part in a thousand, for this epsilon.

    The other arguments are those of `sampled_epsilon`.
    """
    refuse_epsilon("epsilon", epsilon)
    _refuse_steps(rate, steps)
    _refuse(delta, accountant)
    if not steps:
        return 0.0

    def epsilon_at(noise: float) -> float:
        return _epsilon(_equal_steps(noise, rate, steps), delta, accountant)

    if epsilon_at(NOISES[1]) > epsilon:
        raise InputError(
            f"`epsilon` is too small for the accountant {accountant!r}, got "
            f"{epsilon:g} with a delta of {delta:g}."
        )
    return least(lambda noise: epsilon_at(noise) <= epsilon)


def noise_within(
    epsilon_of: Callable[[float], float], epsilon: float, enough: float
) -> float:
    """The smallest noise, to one part in a thousand, that costs at most this epsilon.

    Epsilon falls with noise, nearly like a power. So a few tries are enough. Each try
    is between a noise that is large enough and a noise that is too small.

    Args:
        epsilon_of: noise -> epsilon, a bound that may be slow.
        epsilon: the most that may be spent.
        enough: a noise that is large enough.
    """
    high, of_high = enough, epsilon_of(enough)
    low, of_low = high, of_high
    while of_low <= epsilon:
        high, of_high = low, of_low
        low *= 0.85
        of_low = epsilon_of(low)
    for tried in itertools.count():
        if high <= 1.001 * low:
            break
        middle = math.sqrt(low * high)
        if tried < 6 and math.isfinite(of_low) and 0 < of_high < of_low:
            # Slightly more noise than needed, so that the next try is close to it.
            part = math.log(of_low / epsilon) / math.log(of_low / of_high)
            middle = low * (high / low) ** min(max(part, 0.01), 0.99) * 1.0003
        if not low < middle < high:
            middle = math.sqrt(low * high)
        of_middle = epsilon_of(middle)
        if of_middle > epsilon:
            low, of_low = middle, of_middle
        else:
            high, of_high = middle, of_middle
            if of_high > 0.9995 * epsilon:
                break
    return high


def least(enough: Callable[[float], bool]) -> float:
    """The smallest number that is enough, to one part in a thousand.

    Every larger number must be enough, too.
    """
    high = 1.0
    while not enough(high):
        high *= 2
    low = high / 2
    while enough(low):
        low, high = low / 2, low
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def covers(most: Mapping[Step, int], steps: Mapping[Step, int]) -> bool:
    """Whether each of these steps is covered by a different step of `most`.

    A step of `most` covers one step, whose noise is at least as large and whose rate is
    at most as large.
    """
    left = [(*step, count) for step, count in most.items() if count]
    for noise, rate, held_out, count in sorted((*s, k) for s, k in steps.items()):
        rest, still = count, []
        for other in sorted(
            left, key=lambda other: other[1]
        ):  # the lowest rate that fits
            fits = other[0] <= noise * _SAME and other[1] * _SAME >= rate
            used = min(rest, other[3]) if fits and other[2] == held_out else 0
            rest -= used
            if other[3] > used:
                still.append((*other[:3], other[3] - used))
        if rest:
            return False
        left = still
    return True


def steps_of(ledger: Ledger) -> list[Counter[Step]]:
    """How often each client took each kind of step.

    Raises:
        InputError: if an event is not a release with noise of its own.
    """
    found: list[Counter[Step]] = [Counter() for _ in range(ledger.clients)]
    known: dict[int, tuple[list[int], list[int]]] = {}  # for links that are used again
    for event in ledger:
        if not isinstance(event, Release):
            raise InputError(
                "accounts of samples need releases with noise of their own, got "
                f"{type(event).__name__} in round {event.round}: gossip needs "
                "`coterie.privacy.accounting.projection`."
            )
        refuse_sizes(event)
        number("rate", event.rate, at_least=0, at_most=1)
        if id(event.links) not in known:
            known[id(event.links)] = _links_by_sender(event.links[:, 0])
        for client, links in zip(*known[id(event.links)], strict=True):
            moved = event.sensitivity * math.sqrt(links if event.apart else 1)
            if moved > 0 and event.rate > 0:
                step = _clamp_noise(event.noise / moved), event.rate, event.held_out
                found[client][step] += 1
    return found


def _clamp_noise(noise: float) -> float:
    """The noise, limited by `_LEAST` and `_MOST` so that its square is a number."""
    return 0.0 if noise < _LEAST else min(noise, _MOST)


Steps = tuple[tuple[Step, int], ...]


def _equal_steps(noise: float, rate: float, steps: int) -> Steps:
    return (((noise, rate, False), steps),) if steps else ()


def _parts(steps: Steps) -> tuple[Steps, Steps]:
    """Steps of training samples, and steps of validation samples."""
    held_out = tuple(each for each in steps if each[0][2])
    return tuple(each for each in steps if not each[0][2]), held_out


def _links_by_sender(senders: Tensor) -> tuple[list[int], list[int]]:
    clients, links = senders[senders >= 0].unique(return_counts=True)
    return clients.tolist(), links.tolist()


def _refuse(delta: float, accountant: str) -> None:
    number("delta", delta, above=0, below=1)
    one_of("accountant", accountant, ACCOUNTANTS)


def _refuse_steps(rate: float, steps: int) -> None:
    number("rate", rate, above=0, at_most=1)
    integer("steps", steps, at_least=0)


@lru_cache(maxsize=1024)  # clients of equal sizes spend the same
def _epsilon(steps: Steps, delta: float, accountant: str) -> float:
    """The epsilon of these steps; each kind of step comes with its count."""
    rest, held_out = _parts(steps)
    if rest and held_out:  # a sample is in one part only
        return max(_epsilon(part, delta, accountant) for part in (rest, held_out))
    if any(noise == 0 for (noise, _, _), _ in steps):
        return math.inf
    if not steps:
        return 0.0
    import dp_accounting  # takes seconds, which only private runs should pay

    bound = _quick_epsilon(steps, delta)
    if accountant == "pld" and bound > HOPELESS:
        return _epsilon(steps, delta, "rdp")
    together = _accountant(accountant, _GRID * min(1.0, max(bound, 1e-2)))
    for (noise, rate, _), count in steps:
        event = dp_accounting.GaussianDpEvent(noise)
        if rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(rate, event)
        together.compose(event, count)
    return float(together.get_epsilon(delta))


@lru_cache(maxsize=4096)
def _quick_epsilon(steps: Steps, delta: float) -> float:
    if not steps:
        return 0.0
    rest, held_out = _parts(steps)
    if rest and held_out:
        return max(_quick_epsilon(part, delta) for part in (rest, held_out))
    if any(noise == 0 for (noise, _, _), _ in steps):
        return math.inf
    together = sum(count * _renyi(*kind[:2]) for kind, count in steps)
    a = _ORDERS
    found = together + (-1 / a).log1p() - (delta * a).log() / (a - 1)
    return max(0.0, float(found.min()))


@lru_cache(maxsize=4096)
def _renyi(noise: float, rate: float) -> Float64[Tensor, " a"]:
    """Renyi divergences of one step for all orders."""
    if rate == 1:
        return _ORDERS / (2 * noise**2)
    a, k = _ORDERS[:, None], torch.arange(int(_ORDERS[-1]) + 1).double()
    rest = (a - k).clamp(min=0)
    binomial = (a + 1).lgamma() - (k + 1).lgamma() - (rest + 1).lgamma()
    chance = rest * math.log1p(-rate) + k * math.log(rate)
    terms = binomial + chance + (k * k - k) / (2 * noise**2)
    return terms.masked_fill(k > a, -math.inf).logsumexp(1) / (_ORDERS - 1)


def _accountant(name: str, grid: float) -> Any:
    from dp_accounting import NeighboringRelation, pld, rdp

    zero_out = NeighboringRelation.REPLACE_SPECIAL
    if name == "pld":
        return pld.PLDAccountant(zero_out, value_discretization_interval=grid)
    if name == "rdp":
        return rdp.RdpAccountant(neighboring_relation=zero_out)
    raise NotImplementedError(f"`_accountant` does not make {name!r} yet.")
