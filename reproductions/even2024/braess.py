"""Section 4.6: links that slow all others down, and what leaving them out brings."""

from __future__ import annotations

import numpy as np
import torch

from coterie.cli import Claim
from coterie.graphs import delayed_gap, edges_of, tuned_rates

from .figures import EXPECTED

REAL = torch.float64


def braess_claims(seed: int = 0) -> list[Claim]:
    """The line with one more edge, and the random graph of Figure 4.1."""
    return [*line_claims(), *sparsified_claims(seed)]


def line_claims() -> list[Claim]:
    """A line of ten, p = tau = 1, and one more edge between its ends."""
    expected = EXPECTED["braess"]
    line, ones = edges_of("line", 10), torch.ones(9, dtype=REAL)
    alone = delayed_gap(line, ones, ones)
    claims = [_near("line of 10: lambda_2", expected["line"], alone)]
    more = torch.cat([line, torch.tensor([[0, 9]])])
    found = {}
    for k, delay in enumerate(expected["delays"]):
        delays = torch.cat([ones, torch.tensor([delay], dtype=REAL)])
        often = torch.ones(10, dtype=REAL)
        for name, rates in (("often", often), ("seldom", 1 / delays)):
            found[name, delay] = gap = delayed_gap(more, rates, delays)
            what = f"and an edge of delay {delay:g}, {name} used: lambda_2"
            claims.append(_near(what, expected[name][k], gap))
    slow, fast = found["often", 100], found["often", 1]
    claims.append(
        Claim(
            "the edge of delay 100 slows everybody, that of delay 1 helps",
            "lower by more than 40 %, higher",
            f"lower by {1 - slow / alone:.0%}, {fast / alone:.1f} times as high",
            slow < 0.6 * alone and fast > alone,
        )
    )
    delays = torch.cat([ones, torch.tensor([100.0], dtype=REAL)])
    rates = tuned_rates(more, delays)
    gap = delayed_gap(more, rates, delays)
    claims.append(
        Claim(
            "tuned rates: the edge of delay 100 is left out",
            "p = 0",
            f"p = {float(rates[-1]):.2g}, lambda_2 {gap:.4g}",
            float(rates[-1]) == 0 and gap > max(slow, alone),
        )
    )
    return claims


def _near(what: str, published: float, ours: float) -> Claim:
    agrees = abs(ours - published) <= 0.01 * published
    return Claim(what, f"{published:.4g}", f"{ours:.4g}", agrees, "1 % allowed")


def sparsified_claims(seed: int) -> list[Claim]:
    """Erdos-Renyi graphs of 30 nodes, a tenth of the links 100 times slower."""
    expected, claims = EXPECTED["sparsified"], []
    edges = edges_of("erdos_renyi(0.75)", 30, seed)
    slow = np.random.default_rng(seed).random(len(edges)) < 0.1
    delays = torch.tensor(np.where(slow, 1.0, 0.01))
    plain = 1 / delays
    before = delayed_gap(edges, plain, delays)
    dropped = delayed_gap(edges, plain * torch.tensor(~slow), delays)
    # Of graphs that chance made, others than the reference's: 6.7 with seed 1.
    for text, gap in (("all", before), ("dropped", dropped)):
        low, high = expected[text]
        what = f"Figure 4.1, G1, links {text}: lambda_2"
        claims.append(Claim(what, f"{low} to {high}", f"{gap:.3g}", None, "shown only"))
    for price, ends in zip(expected["prices"], expected["tuned"], strict=True):
        rates = tuned_rates(edges, delays, price=price)
        gap, used = delayed_gap(edges, rates, delays), (rates > 0).numpy()
        text = f"G2 with omega = {price:g}: lambda_2"
        claims.append(_within(text, ends, gap))
        claims.append(
            Claim(
                f"G2 with omega = {price:g}: sparser, no slow link, faster than G1",
                "259 to 277 links, 0 slow",
                f"{used.sum()} of {len(edges)} links, {(used & slow).sum()} slow",
                bool(used.sum() < len(edges) and not (used & slow).any())
                and gap > max(before, dropped),
            )
        )
    return claims


def _within(what: str, ends: list[float], ours: float) -> Claim:
    low, high = ends
    agrees = 0.9 * low <= ours <= 1.1 * high
    return Claim(what, f"{low:g} to {high:g}", f"{ours:.3g}", agrees, "10 % allowed")
