"""Table 1.1: how fast plain and randomised gossip are on graphs of growing size."""

from __future__ import annotations

from typing import NamedTuple

import torch

from coterie.cli import Claim
from coterie.graphs import edges_of, eigengap, max_degree, spectral_gap

from .walks import slope

REAL = torch.float64


class Family(NamedTuple):
    """A row of the table: sizes, and exponents of n that it prints."""

    text: str
    sizes: tuple[int, ...]
    plain: float  # of rho
    random: float  # of rho'
    plain_messages: float  # of |E| / rho
    random_messages: float  # of 1 / rho'


# Rings, lines and tori have eigenvalues 2 - 2 cos(c / k), whose order shows from sides
# of about five on; an expander is one only in the limit of large n.
FAMILIES = (
    Family("random_regular(4)", (256, 512, 1024, 2048, 4096), 0, -1, 1, 1),
    Family("torus(2)", (25, 49, 81, 121, 169, 225), -1, -2, 2, 2),
    Family("torus(3)", (125, 216, 343, 512, 729, 1000), -2 / 3, -5 / 3, 5 / 3, 5 / 3),
    Family("complete", (8, 16, 32, 64, 128, 256), 0, -1, 2, 1),
    Family("line", (8, 16, 32, 64, 128, 256), -2, -3, 3, 3),
    Family("ring", (9, 17, 33, 65, 129, 255), -2, -3, 3, 3),
)


class Speeds(NamedTuple):
    """What is found for one graph."""

    edges: int
    plain: float  # 1 - lambda_2 of I - (D - A) / d: of |x - x_bar| in a round
    random: float  # lambda_2 / 2 of equal chances: of |x - x_bar|^2 in an exchange


def speeds(text: str, n: int, seed: int) -> Speeds:
    """Of both kinds of gossip on a graph, from its Laplacian."""
    edges = edges_of(text, n, seed)
    gap = eigengap(edges, torch.ones(len(edges), dtype=REAL))
    degree = int(torch.bincount(edges.flatten()).max())
    return Speeds(len(edges), gap / degree, gap / len(edges) / 2)


def table11_claims(seed: int = 0) -> list[Claim]:
    """Exponents of n in each column, and what the thesis concludes from them."""
    claims, faster, cheaper = [], True, True
    for family in FAMILIES:
        found = [speeds(family.text, n, seed) for n in family.sizes]
        columns = {
            "rho": (family.plain, [s.plain for s in found]),
            "rho'": (family.random, [s.random for s in found]),
            "|E| / rho": (family.plain_messages, [s.edges / s.plain for s in found]),
            "1 / rho'": (family.random_messages, [1 / s.random for s in found]),
        }
        exponents = {}
        for name, (printed, values) in columns.items():
            ours = exponents[name] = slope(family.sizes, values)
            what = f"{family.text}, n = {family.sizes[0]} to {family.sizes[-1]}: {name}"
            agrees = abs(ours - printed) <= 0.1
            claims.append(
                Claim(what, f"n^{printed:.3g}", f"n^{ours:.3f}", agrees, "0.1 allowed")
            )
        faster &= all(s.plain > s.random for s in found)
        cheaper &= exponents["1 / rho'"] <= exponents["|E| / rho"] + 0.1
    claims.append(
        Claim("plain gossip is faster per round", "rho > rho'", str(faster), faster)
    )
    note = "orders of n; complete: n against n^2"
    text = "no larger order of messages"
    claims.append(
        Claim("randomised gossip per message", text, str(cheaper), cheaper, note)
    )
    return [*claims, small_expanders(seed), *sign_claims()]


def small_expanders(seed: int) -> Claim:
    """Where n is small, a random graph is better than an expander must be."""
    sizes = (8, 16, 32, 64, 128, 256)
    ours = slope(sizes, [speeds("random_regular(4)", n, seed).plain for n in sizes])
    note = "tends to 1 - sqrt(3) / 2 = 0.134, and is 0.6 for n = 8; shown only"
    what = "random_regular(4), n = 8 to 256: rho"
    return Claim(what, "n^0", f"n^{ours:.3f}", None, note)


def sign_claims() -> list[Claim]:
    """What is printed of the matrix itself, and what is true."""
    claims = []
    for text, n, zero in (
        ("ring", 16, True),
        ("torus(2)", 16, True),
        ("ring", 17, False),
    ):
        rho = spectral_gap(max_degree(edges_of(text, n), n))
        claims.append(
            Claim(
                f"{text} of {n}, I - (D - A) / d: rho is 0",
                "not said",
                f"{rho:.2g}",
                (rho < 1e-12) == zero,
                "an even cycle only swaps" if zero else "an odd one does not",
            )
        )
    n = 10
    rho = spectral_gap(max_degree(edges_of("complete", n), n))
    expected = 1 - 1 / (n - 1)
    claims.append(
        Claim(
            f"complete graph of {n}: rho",
            "1",
            f"{rho:.4f}",
            abs(rho - expected) < 1e-12,
            f"corrected: 1 - 1/(n - 1) = {expected:.4f}; 1 needs d = n",
        )
    )
    return claims
