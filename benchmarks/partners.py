"""How often partners are found from means that leave clients with noise.

    python benchmarks/partners.py

The scikit-learn digits among clients of whom odd ones name the digits differently;
`mmd(400)` with a quarter of mu^2, unit sample, twenty draws of noise for each epsilon.
"""

from __future__ import annotations

import math

from coterie.checks import InputError
from coterie.data import divide, load
from coterie.privacy import mu_of
from coterie.privacy.mechanisms.partners import PartnerMechanism, private_weights

DRAWS = 20


def main() -> None:
    for clients in (4, 10):
        data = divide(load("digits"), "label_swap", seed=0, clients=clients)
        true = data.clusters[:, None] == data.clusters
        size = int(data.train.size.min())
        for epsilon in (8, 16, 32):
            noise = 1 / (math.sqrt(0.25) * mu_of(epsilon, 1e-5))
            gaps = right = wrong = 0
            for seed in range(DRAWS):
                choosing = PartnerMechanism("sample", noise, seed)
                try:
                    found = private_weights("mmd", data, 400, choosing) > 0
                except InputError:  # no gap
                    continue
                gaps += 1
                right += int((found & true).sum())
                wrong += int((found & ~true).sum())
            share = f"{right / (gaps * int(true.sum())):.0%}" if gaps else "none"
            print(
                f"{clients} clients of {size} samples, epsilon {epsilon}: a gap in "
                f"{gaps} of {DRAWS}; of true partners {share}, wrong pairs {wrong}"
            )


if __name__ == "__main__":
    main()
