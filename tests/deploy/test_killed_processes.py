"""Claims about processes that end by SIGKILL; `long_sites` has every pair of them."""

from __future__ import annotations

from support.site_processes import HUB, Kill, Parties, study_of_processes


def test_parties_that_are_killed_return_and_the_models_are_those_of_the_simulation(
    tmp_path,
):
    """Two members at once, and the hub: between its answers, and before a method."""
    rounds = 8
    kills = [
        Kill("Basel", 3, 1, True, 1.0),
        Kill("Chur", 3, 1, True),
        Kill(HUB, 6, 4, False),
        Kill(HUB, rounds + 2, -1, True),
        Kill("Bern", rounds + 5, 1, False),
    ]
    study = study_of_processes(rounds, "fedavg", "decentralised_sgd")
    parties = Parties(tmp_path, study, kills)
    try:
        parties.run(120)
        assert all(parties.happened(kill) for kill in kills)
        assert parties.last_step() == 2 * (rounds + 1)
        assert parties.difference() < 1e-5
    finally:
        parties.close()
