"""Claims about a hub and members on the loopback."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from coterie.checks import InputError
from coterie.data.files import table as read_table
from coterie.deploy.sites.hub import Hub, HubSettings
from coterie.deploy.sites.link import RunOver
from coterie.deploy.sites.member_store import Checkpoint, MemberStore
from coterie.deploy.sites.page import status_page
from coterie.deploy.sites.runs import SiteRun
from coterie.deploy.sites.store import HubStore
from coterie.deploy.sites.wire import Parcel
from coterie.engine.rounds import participants
from coterie.study import run_study
from support.sites import (
    NAMES,
    Death,
    hub_on_loopback,
    run_site,
    run_sites,
    simulated,
    site_files,
    study_with,
    tables_of,
    wait_for,
)

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
    assert not list(tmp_path.rglob("away.key"))  # nobody needs it after the run


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


@pytest.mark.parametrize("kinds", ["begin mail", "gather gather", "rows mail"])
@pytest.mark.parametrize("before", [True, False])
def test_a_member_lost_in_a_round_returns_by_replay(tmp_path, kinds, before):
    one, two = kinds.split()
    if (one, before) == ("rows", False):
        pytest.skip("then a sum of its row may be opened: see the next test")
    deaths = {"Basel": Death(3, one, 2, before), "Chur": Death(9, two, 1, before)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    absent = [step for step, one in enumerate(commits) if one.present != (0, 1, 2, 3)]
    assert {3, 9} <= set(absent)
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def test_nobody_sums_again_without_a_member_whose_row_has_arrived(tmp_path):
    """The others have signed that all rows are there, so they wait until it is back."""
    deaths = {"Basel": Death(3, "rows", 0, False)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    assert all(commit.present == (0, 1, 2, 3) for commit in commits)
    assert commits[3].attempt == 2
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def test_a_sum_that_one_member_has_opened_needs_nobody_else(tmp_path):
    deaths = {"Basel": Death(3, "open", 1), "Chur": Death(3, "open", 1)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    assert commits[3].present == (0, 1, 2, 3)
    assert set(commits[3].votes) == {"0", "2"}
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def test_an_opened_sum_is_final(tmp_path):
    """Who is lost after the sum counts as present, and does its round again later."""
    deaths = {"Basel": Death(3, "open", 1, False), "Chur": Death(6, "vote", 1)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    assert commits[3].present == (0, 1, 2, 3) and 3 in commits[6].present
    assert "3" not in commits[6].votes
    assert set(commits[3].votes) == {"0", "2", "3"}
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


TWO_SUMS = tables_of("""
[run]
rounds = 3
seeds = [3]
batch_size = 8
[[algorithm]]
name = "scaffold"
lr = 0.1
momentum = 0.5
steps = 3
[[algorithm]]
name = "dane"
""")


@pytest.mark.parametrize(("step", "back"), [(3, 0), (7, 1)])  # in each method
def test_the_others_wait_for_a_member_that_was_lost_between_two_sums(
    tmp_path, step, back
):
    """A second sum without its row would be no round of any simulation."""
    deaths = {"Basel": Death(step, "open", back, False)}
    commits, found = run_sites(tmp_path, TWO_SUMS, BRIEF, deaths)
    assert commits[step].present == (0, 1, 2, 3) and commits[step].attempt == 2
    assert set(commits[step].votes) == {"0", "1", "2", "3"}
    assert_like_simulation(tmp_path, TWO_SUMS, commits, found)


def test_who_does_not_return_after_the_first_of_two_sums_is_named(tmp_path):
    now, store = [0.0], HubStore(tmp_path / "hub.db")
    settings = HubSettings(patience=5.0, wait=60.0)
    hub = Hub(NAMES, "run", store, settings, clock=lambda: now[0])
    begin = {"kind": "begin", "step": 0, "what": "round 1", "after": 0}
    begin |= {"lists": [[0, [0, 1, 2, 3]]]}
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(hub.answer, r, Parcel(begin)) for r in (0, 2, 3)]
        wait_for(lambda: len(hub._ready) == 3)
        for second in range(0, 100, 4):
            now[0] = float(second)
            for rank in (0, 2, 3):
                hub.answer(rank, Parcel({"kind": "alive"}))
            hub.look()
        said = {one.result(timeout=5).header.get("ended") for one in waiting} - {None}
    store.close()
    assert "Basel was lost when its row was in a sum already" in hub.ended
    assert "did not return for 60 seconds" in hub.ended
    assert said <= {hub.ended}


def test_a_member_lost_after_its_vote_has_the_result(tmp_path):
    deaths = {"Basel": Death(3, "vote", 0, False), "Chur": Death(9, "vote", 1, False)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    assert commits[3].present == commits[9].present == (0, 1, 2, 3)
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def test_members_that_were_lost_take_part_again_if_the_others_are_too_few(tmp_path):
    """Nobody else is there, so the round would never be done without them."""
    deaths = {name: Death(3, "gather", 0) for name in NAMES[:3]}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    assert len(commits[3].present) >= 3
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def test_the_set_up_waits_for_a_member_that_was_lost(tmp_path):
    deaths = {"Basel": Death(0, "gather", 0), "Chur": Death(0, "open", 0)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths)
    assert commits[0].present == (0, 1, 2, 3)
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def test_rows_may_travel_in_the_clear(tmp_path):
    deaths = {"Basel": Death(3, "sum", 2), "Chur": Death(9, "mail", 1, False)}
    commits, found = run_sites(tmp_path, ROUNDS, BRIEF, deaths, masks=False)
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def long_run(*methods: str) -> dict:
    entries = "".join(f'[[algorithm]]\nname = "{m}"\nlr = 0.05\n' for m in methods)
    return tables_of(f"[run]\nrounds = 20\nseeds = [3]\nbatch_size = 8\n{entries}")


@pytest.fixture
def gaps(monkeypatch):
    """The first step in the log, for each time that a member was away for longer."""
    found, rejoin = list[int](), SiteRun._rejoin

    def noted(run, gap, *rest):
        found.append(gap.step)
        return rejoin(run, gap, *rest)

    def prune(store, most):
        last = store.last_step()
        for step in range(max(1, store.first_step()), last - 4):
            store._do("DELETE FROM answers WHERE step = ?", step)
            store.set_fact("first step", str(step + 1))

    monkeypatch.setattr("coterie.deploy.sites.hub._PRUNE", 4)
    monkeypatch.setattr(HubStore, "prune", prune)  # four steps stay
    monkeypatch.setattr(SiteRun, "_rejoin", noted)
    return found


def test_a_member_that_was_away_for_longer_than_the_log_takes_part_again(
    tmp_path, gaps
):
    """Its models are those of an absent client, as with the whole log."""
    methods = ("ditto", "decentralised_sgd", "fedavg")
    tables, starts = long_run(*methods), (1, 22, 43)
    places = (starts[0] + 3, starts[1] + 2, starts[2])  # also before a method begins
    deaths = {"Basel": [Death(step, "begin", 9) for step in places]}
    commits, found = run_sites(tmp_path, tables, BRIEF, deaths)
    for start, step in zip(starts, places, strict=True):
        first = next(gap for gap in gaps if gap > step)
        assert first <= start + 20
        assert all(1 not in one.present for one in commits[step:first])
    assert_like_simulation(tmp_path, tables, commits, found)
    assert all(1 in commits[start + 20].present for start in starts)


def test_a_member_is_told_if_what_all_share_depends_on_lost_answers(tmp_path, gaps):
    """Control variates add up over rounds, so none of them may be left out."""
    deaths = {"Basel": Death(4, "begin", 9)}
    with pytest.raises((InputError, RunOver), match="was away for too long"):
        run_sites(tmp_path, long_run("scaffold"), BRIEF, deaths)
    assert gaps


def test_nobody_goes_on_after_sums_that_members_have_not_signed(
    tmp_path, gaps, monkeypatch
):
    true = Hub._oldest_step

    def forged(hub, first):
        told = true(hub, first)
        return told._replace(header=told.header | {"memory": "0" * 64})

    monkeypatch.setattr(Hub, "_oldest_step", forged)
    deaths = {"Basel": Death(4, "begin", 9)}
    with pytest.raises((InputError, RunOver), match="has not signed the end of"):
        run_sites(tmp_path, long_run("fedavg"), BRIEF, deaths)


SOME = tables_of("""
[run]
rounds = 8
seeds = [3]
batch_size = 8
participation = 0.75
baselines = false
[[algorithm]]
name = "fedavg"
lr = 0.1
[[algorithm]]
name = "decentralised_sgd"
lr = 0.1
""")


def drawn(t: int) -> tuple[int, ...]:
    return tuple(participants(4, 0.75, 3, t).nonzero().flatten().tolist())


def test_the_study_draws_who_takes_part_as_in_a_simulation(tmp_path):
    commits, found = run_sites(tmp_path, SOME, QUICK)
    rounds = [one for one in commits if "round" in one.what]
    assert len({one.present for one in rounds}) > 2
    for one in rounds:
        assert one.present == drawn(int(one.what.split()[-1]))
    table = read_table(tmp_path / "all.csv", client="hospital", target="outcome")
    whole = run_study(study_with(SOME, table), runs=tmp_path / "runs")
    for rank, name in enumerate(NAMES):
        for label in ("fedavg", "decentralised_sgd"):
            wanted = whole.models(label, 3)[rank : rank + 1]
            own = found[name][1].models(label, 3)
            torch.testing.assert_close(own, wanted, rtol=0, atol=1e-6)


def test_nobody_takes_the_place_of_a_drawn_member_that_is_lost(tmp_path):
    step = next(1 + t for t in range(2, 9) if 1 in drawn(t))  # Basel is drawn
    deaths = {"Basel": Death(step, "begin", 2)}
    brief = HubSettings(least=2, patience=0.6)
    commits, found = run_sites(tmp_path, SOME, brief, deaths)
    for one in commits:
        if "round" in one.what:
            assert {*one.present} <= {*drawn(int(one.what.split()[-1]))}
    assert 1 not in commits[step].present
    assert_like_simulation(tmp_path, SOME, commits, found)


def test_a_member_takes_no_part_in_a_round_for_which_it_is_not_drawn(
    tmp_path, monkeypatch
):
    """A hub that lets others take part is refused, and nothing leaves in the round."""
    monkeypatch.setattr(Hub, "_draw_in", lambda hub, header: None)
    with pytest.raises((InputError, RuntimeError), match="draws others"):
        run_sites(tmp_path, SOME, QUICK)
    store = MemberStore(tmp_path / "Aarau")
    assert not [one for one in store.departures() if "round" in one.what]
    store.close()


@pytest.mark.parametrize("step", [0, 4, 9])
def test_a_hub_that_was_killed_goes_on_from_its_log(tmp_path, step, monkeypatch):
    monkeypatch.setattr("coterie.deploy.sites.hub._POLL", 1.0)
    files = site_files(tmp_path)
    with ThreadPoolExecutor(len(NAMES)) as pool:
        with hub_on_loopback(tmp_path, QUICK, crash=True) as first:
            futures = [
                pool.submit(run_site, first, name, ROUNDS, files[name], tmp_path)
                for name in NAMES
            ]
            wait_for(lambda: first.hub.step >= step and len(first.hub._lives) == 4)
        with hub_on_loopback(tmp_path, QUICK, port=first.port) as second:
            wait_for(
                lambda: all(one["there"] for one in second.hub.status()["members"])
            )
            found = {n: f.result() for n, f in zip(NAMES, futures, strict=True)}
            commits = second.hub.store.commits()
    assert [commit.step for commit in commits] == list(range(13))
    assert all(commit.present == (0, 1, 2, 3) for commit in commits)
    assert_like_simulation(tmp_path, ROUNDS, commits, found)


def test_a_state_that_was_not_written_to_its_end_is_none(tmp_path):
    """As after `kill -9` while it was written, at every length."""
    store, path = MemberStore(tmp_path), tmp_path / "prepared.state"
    store.prepare(Checkpoint(3, 1, ({"x": torch.ones(2)}, "00")))
    whole = path.read_bytes()
    assert store.prepared_state().step == 3
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert store.prepared_state() is None
    store.close()


def test_the_page_of_the_hub_shows_members_and_the_step(tmp_path):
    def get(path):
        with urllib.request.urlopen(path, timeout=5) as answer:
            return answer.read().decode()

    with hub_on_loopback(tmp_path, QUICK) as running, status_page(running.hub) as at:
        assert all(name in get(at) for name in NAMES)
        assert json.loads(get(f"{at}status.json"))["step"] == 0
        with pytest.raises(urllib.error.HTTPError):
            get(f"{at}hub.db")
        with pytest.raises(urllib.error.HTTPError):
            get(urllib.request.Request(at, headers={"Host": "elsewhere.example"}))
