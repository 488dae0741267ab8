"""Figure 2, d = 2, in plain NumPy: an independent check that uses nothing of coterie.

    python reproductions/philippenko2025/loop.py

`shared` draws one minibatch of every client k in a step, for all readers i, as coterie
does; otherwise every pair (i, k) draws its own, as the authors' code does.
"""

from __future__ import annotations

import numpy as np

N, D, BATCH, LR, LAM = 20, 2, 2, 0.25, 0.1
ALONE = np.arange(N)


def gradients(x, centres, rng, shared):
    """g[i, k] is client k's stochastic gradient at the model of client i."""
    if shared:
        drawn = rng.normal(size=(1, N, BATCH, D))
        features = np.broadcast_to(drawn, (N, N, BATCH, D))
    else:
        features = rng.normal(size=(N, N, BATCH, D))
    errors = np.einsum("ikbd,ikd->ikb", features, x[:, None] - centres[None])
    return 2 * np.einsum("ikb,ikbd->ikd", errors, features) / BATCH


def errors_of(seed, oracle, shared, rounds=(20, 50)):
    """log10 of the mean squared distance to the optima after these rounds."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-10, 10, (2, D))[ALONE % 2]
    x, found = np.zeros((N, D)), []
    for t in range(1, max(rounds) + 1):
        weights = (ALONE[:, None] % 2 == ALONE % 2).astype(float)
        if not oracle:
            g = gradients(x, centres, rng, shared)
            own = g[ALONE, ALONE]
            distance = ((own[:, None] - g) ** 2).sum(-1)
            norm = np.maximum((own**2).sum(-1), 1e-250)
            ratio = 1 - distance / norm[:, None]
            ratio[ALONE, ALONE] = 1
            weights = (ratio >= LAM).astype(float)
        weights /= weights.sum(1, keepdims=True)
        g = gradients(x, centres, rng, shared)
        x = x - LR * np.einsum("ik,ikd->id", weights, g)
        if t in rounds:
            distance = ((x - centres) ** 2).sum(1).mean()
            found.append(np.log10(max(distance, 1e-33)))
    return found


if __name__ == "__main__":
    for oracle in (True, False):
        for shared in (True, False):
            table = np.array([errors_of(seed, oracle, shared) for seed in range(40)])
            name = "oracle" if oracle else "binary, normalised"
            draws = "shared" if shared else "own for each pair"
            for t, mean, sd in zip((20, 50), table.mean(0), table.std(0), strict=True):
                print(f"{name:20} minibatches {draws:18} t={t}: {mean:.1f} sd {sd:.1f}")
