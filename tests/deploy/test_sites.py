"""Claims about a hub and members on the loopback."""

from __future__ import annotations

import torch
from support.sites import NAMES, run_sites, simulated, tables_of

from coterie.deploy.sites.hub import HubSettings

QUICK = HubSettings(patience=5.0)

FOUR = tables_of("""
[run]
rounds = 4
seeds = [3]
batch_size = 8
[[algorithm]]
name = "local"
lr = 0.1
[[algorithm]]
name = "fedavg"
lr = 0.1
steps = 3
[[algorithm]]
name = "ditto"
lr = 0.1
steps = 3
[[algorithm]]
name = "decentralised_sgd"
lr = 0.1
""")


def test_four_sites_train_the_models_of_the_simulation(tmp_path):
    commits, found = run_sites(tmp_path, FOUR, QUICK)
    wanted = simulated(tmp_path, FOUR, commits)
    for rank, name in enumerate(NAMES):
        _, results = found[name]
        for label, models in wanted.items():
            torch.testing.assert_close(
                results.models(label, 3), models[rank : rank + 1], rtol=0, atol=1e-6
            )
