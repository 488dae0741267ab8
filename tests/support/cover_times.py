"""Cover times of Markov chains, measured on walks."""

from __future__ import annotations

import torch

from coterie.graphs.chains import irreducible
from coterie_theory.decentralised.chains import paths


def cover_time(chain, rng: torch.Generator, *, runs: int = 400) -> float:
    """An estimate of tau_cov: the largest mean cover time of `runs` walks per state.

    A maximum of means is a little too large. The means deviate by about tau_cov / (2
    sqrt(`runs`)).
    """
    n = len(irreducible(chain).indptr) - 1
    at = torch.arange(n).repeat_interleave(runs)
    met = torch.zeros(len(at), n, dtype=torch.bool)
    took = torch.zeros(len(at), dtype=torch.float64)
    going, t = torch.arange(len(at)), 0
    while len(going):
        piece = paths(chain, at[going], 64, rng)[1:]
        for now in piece:
            t += 1
            met[going, now] = True
            done = met[going].all(1) & (took[going] == 0)
            took[going[done]] = t
        at[going] = piece[-1]
        going = going[took[going] == 0]
    return float(took.view(n, runs).mean(1).max())
