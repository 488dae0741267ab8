"""Claims about a hub and members on the loopback."""

from __future__ import annotations

import pytest
import torch
from support.sites import NAMES, Death, run_sites, simulated, tables_of

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


def assert_like_simulation(folder, tables, commits, found):
    wanted = simulated(folder, tables, commits)
    for rank, name in enumerate(NAMES):
        _, results = found[name]
        for label, models in wanted.items():
            torch.testing.assert_close(
                results.models(label, 3), models[rank : rank + 1], rtol=0, atol=1e-6
            )


def test_four_sites_train_the_models_of_the_simulation(tmp_path):
    commits, found = run_sites(tmp_path, FOUR, QUICK)
    assert all(commit.present == (0, 1, 2, 3) for commit in commits)
    assert_like_simulation(tmp_path, FOUR, commits, found)


ROUNDS = tables_of("""
[run]
rounds = 5
seeds = [3]
batch_size = 8
[[algorithm]]
name = "ditto"
lr = 0.1
steps = 3
[[algorithm]]
name = "decentralised_sgd"
lr = 0.1
""")
BRIEF = HubSettings(patience=0.6)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("call", [0, 1, 2])
def test_a_member_lost_in_a_round_returns_by_replay(tmp_path, call, before):
    """Call 0 says that it is ready, call 1 is the verb, and call 2 is the vote."""
    deaths = {"Basel": Death(3, call, 2, before), "Chur": Death(9, call, 1, before)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    absent = [step for step, one in enumerate(commits) if one.present != (0, 1, 2, 3)]
    voted = call == 2 and not before  # then the round counts, and it has the result
    assert (3 in absent, 9 in absent) == (not voted, not voted)
    assert_like_simulation(tmp_path, ROUNDS, commits, found)
