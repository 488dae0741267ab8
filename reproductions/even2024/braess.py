"""Section 4.6: one link that slows all others down."""

from __future__ import annotations

import torch

from coterie.cli import Claim
from coterie.graphs import delayed_gap, edges_of, tuned_rates

from .figures import EXPECTED

REAL = torch.float64


def braess_claims() -> list[Claim]:
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
