"""Long tests of sites, which `make test-sites` runs: random ends, and many rounds."""

from __future__ import annotations

import random
import resource
import time

import torch

from coterie.deploy.sites.hub import HubSettings
from support.sites import NAMES, Death, run_sites, simulated, tables_of

KINDS = ("begin", "gather", "rows", "open", "mail", "vote")


def test_models_are_those_of_the_simulation_after_a_hundred_random_ends(tmp_path):
    """Every few steps, a member or two end as by `kill -9`, and come back later."""
    rounds, methods = 150, ("ditto", "decentralised_sgd", "fedprox", "extra")
    entries = "".join(f'[[algorithm]]\nname = "{m}"\nlr = 0.05\n' for m in methods)
    tables = tables_of(f"""
    [run]
    rounds = {rounds}
    evaluate_every = {rounds}
    seeds = [3]
    batch_size = 8
    {entries}
    """)
    rng, deaths = random.Random(0), dict[str, list[Death]]()
    steps = len(methods) * (rounds + 1)
    for step in range(5, steps - 10, 4):
        for name in rng.sample(NAMES, rng.choice([1, 1, 1, 2])):
            back, before = rng.choice([0, 1, 2, 5]), rng.random() < 0.5
            kind = rng.choice(KINDS)
            if kind == "rows" and not before:
                back = 0  # the others have signed that its row is there: they wait
            death = Death(step, kind, back, before)
            deaths.setdefault(name, []).append(death)
    settings = HubSettings(least=2, patience=1.5, attempts=10)
    began = time.monotonic()
    ends = list[Death]()
    commits, found = run_sites(
        tmp_path, tables, settings, deaths, ends, methods=methods
    )
    wanted, worst = simulated(tmp_path, tables, commits), 0.0
    fewer = sum(len(commit.present) < len(NAMES) for commit in commits)
    for rank, name in enumerate(NAMES):
        for label, models in wanted.items():
            own = found[name][1].models(label, 3)
            worst = max(worst, float((own - models[rank]).abs().max()))
    print(
        f"{len(ends)} ends, {fewer} of {len(commits)} steps with fewer members, "
        f"largest difference {worst:.1e}, {time.monotonic() - began:.0f} seconds"
    )
    assert len(ends) >= 100 and worst < 1e-5


def memory() -> float:
    """The most memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_ten_thousand_rounds_need_no_more_memory_than_a_few(tmp_path):
    rounds = 10_000
    tables = tables_of(f"""
    [run]
    rounds = {rounds}
    evaluate_every = {rounds}
    seeds = [3]
    batch_size = 8
    [[algorithm]]
    name = "fedavg"
    lr = 0.05
    """)
    settings = HubSettings(patience=60.0, log_bytes=2**20)
    began, before = time.monotonic(), memory()
    commits, found = run_sites(tmp_path, tables, settings)
    wanted = simulated(tmp_path, tables, commits)["fedavg"]
    log = (tmp_path / "hub.db").stat().st_size / 1e6
    own = (tmp_path / NAMES[0] / "site.db").stat().st_size / 1e6
    print(
        f"{rounds} rounds of {len(NAMES)} members and the hub in one process: "
        f"{before:.0f} MB before, {memory():.0f} MB after; log of the hub {log:.1f} "
        f"MB, of a member {own:.1f} MB; {time.monotonic() - began:.0f} seconds"
    )
    assert memory() - before < 200
    for rank, name in enumerate(NAMES):
        torch.testing.assert_close(
            found[name][1].models("fedavg", 3), wanted[[rank]], rtol=0, atol=1e-4
        )
