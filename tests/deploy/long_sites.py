"""Long tests of sites, which `make test-sites` runs: kills, and many rounds."""

from __future__ import annotations

import random
import resource
import time
from itertools import product

import torch

from coterie.deploy.sites.comparing import commits_in
from coterie.deploy.sites.hub import HubSettings
from support.site_processes import HUB, Kill, Parties, study_of_processes
from support.sites import NAMES, run_sites, simulated, tables_of


def report_on(parties: Parties, kills: int, began: float) -> None:
    """Prints what has happened, and compares the models with the simulation."""
    commits, worst = commits_in(parties.log), parties.difference()
    fewer = sum(len(commit.present) < len(NAMES) for commit in commits)
    print(
        f"{kills} ends by SIGKILL, {fewer} of {len(commits)} steps with fewer "
        f"members, largest difference {worst:.1e}, "
        f"{time.monotonic() - began:.0f} seconds"
    )
    assert worst < 1e-5


def every_pair(rounds: int) -> list[Kill]:
    """A party, a call and a loss: all of them, in two kinds of rounds.

    A masked average has `begin`, keys, rows, the list of rows, the opening and the
    vote. A round with mail has `begin`, keys, mail and the vote.
    """
    kills, starts = list[Kill](), (1, rounds + 2)
    for start, places in zip(starts, (range(-1, 5), range(-1, 3)), strict=True):
        step = start + 1
        for place, before in product(places, (True, False)):
            kills += [
                Kill("Basel", step, place, before),
                Kill(HUB, step + 2, place, before),
            ]
            # Two at once; they return later than the others wait.
            late = 0.0 if place in (1, 2) else 4.0  # the others may wait for their rows
            for name in ("Aarau", "Chur"):
                kills.append(Kill(name, step + 4, place, before, late))
            step += 6
        assert step <= start + rounds
    # During the set-up, and the hub between two methods.
    for place, before in product((0, 2, 4), (True, False)):
        kills.append(Kill("Bern", 0, place, before))
    kills += [Kill(HUB, 0, 3, True), Kill(HUB, 0, 3, False)]
    kills += [Kill(HUB, starts[1], -1, True), Kill(HUB, starts[1], -1, False)]
    return kills


def test_every_pair_of_a_party_and_a_call_may_be_lost(tmp_path):
    rounds, began = 75, time.monotonic()
    kills = every_pair(rounds)
    study = study_of_processes(rounds, "fedavg", "decentralised_sgd")
    parties = Parties(tmp_path, study, kills)
    try:
        parties.run(1800)
        missed = [kill for kill in kills if not parties.happened(kill)]
        report_on(parties, len(kills) - len(missed), began)
        # A member that was left out of a round makes no calls in it.
        assert len(missed) < len(kills) / 5, missed
    finally:
        parties.close()


def test_models_are_those_of_the_simulation_after_a_hundred_random_kills(tmp_path):
    """Every few steps, a member or two or the hub ends by SIGKILL, and comes back."""
    methods, rng = ("ditto", "decentralised_sgd", "fedprox", "extra"), random.Random(0)
    rounds, began, killed = 250, time.monotonic(), 0
    parties = Parties(tmp_path, study_of_processes(rounds, *methods))
    last = len(methods) * (rounds + 1) - 20
    try:
        while killed < 100 and (step := parties.last_step()) < last:
            parties.is_over()  # raises if a party has failed
            if step < 1:  # the set-up
                time.sleep(0.1)
                continue
            some = rng.choice([[HUB], *[rng.sample(NAMES, k) for k in (1, 1, 1, 2)]])
            time.sleep(rng.uniform(0, 0.1))  # any moment of a round
            parties.kill(some)
            killed += len(some)
            time.sleep(rng.choice([0, 0.2, 4]))  # the others wait for three seconds
            for name in some:
                parties.restart(name)
            goal, end = min(last, parties.last_step() + 6), time.monotonic() + 120
            while parties.last_step() < goal and time.monotonic() < end:
                time.sleep(0.02)
        parties.run(900)
        report_on(parties, killed, began)
        assert killed >= 100
    finally:
        parties.close()


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
