"""Studies with [time]: the same again, also after a stop, counts by hand, refusals."""

from __future__ import annotations

import copy
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.checks import InputError
from coterie.records import Folder, load_records
from coterie.study.config import read_study, study_of
from coterie.study.experiment import Progress, Result, run_study
from coterie.study.tables import Time
from support import study_runs
from support.called import refused
from support.refusals import refuses
from support.run_folders import folder_of
from support.tiny_studies import CLIENTS, TABLES

FULL = {
    "law": "lognormal(1, 0.5)",
    "speeds": [1, 2, 1, 6],
    "availability": "on_off(6, 1)",
    "links": "exponential(0.2)",
}
# One that waits, one at each client's own pace, and those that do not wait.
EVERY = [
    {"name": "fedavg"},
    {"name": "local"},
    {"name": "ditto", "waits": False, "late": "adaptive"},
    {"name": "server_sgd", "assign": "random"},
    {"name": "loss_network"},
    {"name": "dual_accelerated"},
    {"name": "ddo"},
    {"name": "adaptive_all_for_one", "waits": False, "every": 2},
]
RECORDED = ("metrics", "rounds", "clients", "delays", "spans", "work")
TICKS = 8


def in_time(entries=EVERY, time=FULL, **run):
    """A study of four clients in virtual time, with settings of [run] changed."""
    tables = copy.deepcopy(TABLES)
    tables["algorithm"], tables["time"] = copy.deepcopy(entries), dict(time)
    tables["run"] |= {"rounds": TICKS, **run}
    return tables


def last(result: Result, label: str) -> pd.Series:
    """What was recorded of an algorithm at the end."""
    rounds = result.records.rounds
    return rounds[rounds["algorithm"] == label].iloc[-1]


def work(result: Result, label: str) -> pd.DataFrame:
    table = result.records.work
    return table[table["algorithm"] == label].sort_values("client")


def assert_same(first: Result, second: Result) -> None:
    """Raises unless two runs have bitwise the same tables and models."""
    for name in RECORDED:
        tables = [pd.read_csv(r.folder / f"{name}.csv") for r in (first, second)]
        if name == "rounds":
            tables = [table.drop(columns="seconds") for table in tables]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
    for entry in first.study.algorithms:
        assert torch.equal(first.models(entry.label), second.models(entry.label))
    assert first.records.weights.keys() == second.records.weights.keys()
    for key, snapshots in first.records.weights.items():
        np.testing.assert_array_equal(
            snapshots.matrices, second.records.weights[key].matrices
        )


@pytest.fixture(scope="module")
def full_run(tmp_path_factory) -> Result:
    return run_study(study_of(in_time()), runs=tmp_path_factory.mktemp("r"))


def test_snapshots_of_a_graph_are_its_metropolis_weights(full_run):
    kept = full_run.records.weights["loss_network", 0].matrices
    assert kept.dtype == np.float32 and len(kept) > 1
    ring = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3
    np.testing.assert_allclose(kept, np.broadcast_to(ring, kept.shape), rtol=1e-6)


def test_the_same_study_twice_gives_bitwise_the_same(full_run, tmp_path):
    assert_same(full_run, run_study(full_run.study, runs=tmp_path))


def with_stops(whole: Result, runs, stops: set[tuple[str, int]]) -> Result:
    """The same study, interrupted at these ticks of algorithms."""

    def interrupt(p: Progress) -> None:
        if (p.label, p.t) in stops:
            stops.remove((p.label, p.t))
            raise KeyboardInterrupt

    while stops:
        before = set(stops)
        with pytest.raises(KeyboardInterrupt):
            run_study(whole.study, runs=runs, progress=interrupt)
        ((label, t),) = before - stops
        cell = Folder(folder_of(whole.study, runs)).cell(label, 0)
        assert (cell.t, cell.done) == (t, False)
    return run_study(whole.study, runs=runs)


def test_going_on_after_interruptions_equals_not_stopping(full_run, tmp_path):
    """Everyone is stopped once, and one that waits and one that does not, twice."""
    stops = {(entry.label, 5) for entry in full_run.study.algorithms}
    stops |= {("fedavg", 1), ("server_sgd", 1)}
    assert_same(full_run, with_stops(full_run, tmp_path, stops))


def test_with_few_places_going_on_equals_not_stopping(tmp_path):
    """Checkpoints have the clients that wait for a place."""
    entries = [e for e in EVERY if e["name"] in ("fedavg", "server_sgd", "ditto")]
    tables = in_time(entries, {**FULL, "capacity": 2}, checkpoint_seconds=0.0)
    whole = run_study(study_of(tables), runs=tmp_path / "whole")
    stops = {(entry.label, 3) for entry in whole.study.algorithms}
    assert_same(whole, with_stops(whole, tmp_path, stops))


def test_other_algorithms_and_their_order_change_nothing(full_run, tmp_path):
    tables = in_time([{"name": "server_sgd", "assign": "random"}, {"name": "fedavg"}])
    # The period is that of the longest rounds, here as there.
    two = run_study(study_of(tables), runs=tmp_path)
    for label in ("fedavg", "server_sgd"):
        assert torch.equal(two.models(label), full_run.models(label))


def test_clients_are_busy_or_idle_all_the_time(full_run):
    end = TICKS * full_run.study.time.period
    table = full_run.records.work
    assert len(table) == CLIENTS * len(EVERY)
    np.testing.assert_allclose(table["busy"] + table["idle"], end, rtol=1e-9)
    assert (table[["busy", "idle"]] >= 0).all(axis=None)
    ends = full_run.records.rounds.groupby("algorithm")["time"].max()
    assert set(ends) == {end}


def test_tasks_updates_and_delays_are_counted_alike(full_run):
    delays = full_run.records.delays.groupby("algorithm")["count"].sum()
    for entry in EVERY:
        updates = last(full_run, entry["name"])["updates"]
        assert work(full_run, entry["name"])["tasks"].sum() == updates
        assert delays.get(entry["name"], updates) == updates
    assert "fedavg" not in delays  # where all wait, nothing is late


def test_files_agree_with_the_records(full_run):
    for name in RECORDED:
        written = pd.read_csv(full_run.folder / f"{name}.csv")
        table = getattr(full_run.records, name)
        pd.testing.assert_frame_equal(written, table, check_dtype=False)
    again = load_records(full_run.folder)
    pd.testing.assert_frame_equal(again.spans, full_run.records.spans)


def test_spans_are_the_times_in_which_clients_compute(full_run):
    """As far as they are kept, one client's do not overlap, and busy is their sum."""
    end = TICKS * full_run.study.time.period
    spans = full_run.records.spans
    for (label, client), mine in spans.groupby(["algorithm", "client"]):
        mine = mine.sort_values("begin")
        assert (mine["begin"].iloc[1:].values >= mine["end"].iloc[:-1].values).all()
        if label == "fedavg":  # whose turn under way is not told yet
            continue
        busy = (mine["end"].clip(upper=end) - mine["begin"].clip(upper=end)).sum()
        recorded = work(full_run, label).set_index("client").loc[client]["busy"]
        if label == "loss_network" and busy < recorded:  # nor is that of a pair
            longest = float((mine["end"] - mine["begin"]).max())
            assert recorded - busy <= 3 * longest
        else:
            assert busy == pytest.approx(recorded, rel=1e-9)


NAMES = ("fedavg", "local", "ditto", "all_for_all", "all_for_one")


@pytest.fixture(scope="module")
def in_rounds(tmp_path_factory) -> Result:
    tables = in_time([{"name": name, "lr": 0.1} for name in NAMES], rounds=4)
    del tables["time"]
    tables["run"]["dtype"] = "float64"
    return run_study(study_of(tables), runs=tmp_path_factory.mktemp("r"))


@pytest.mark.parametrize(
    ("law", "name", "waits"),
    [
        *(("constant(1)", name, None) for name in NAMES),
        ("constant(0.7)", "fedavg", True),
        ("constant(1)", "local", True),
        ("constant(1)", "ditto", False),
        ("constant(1)", "all_for_all", False),
    ],
)
def test_at_equal_times_studies_are_those_of_rounds(
    in_rounds, tmp_path, law, name, waits
):
    """A round lasts as long as its gradients: two in Ditto, and in All-for-one here."""
    gradients = 2 if name in ("ditto", "all_for_one") else 1
    period = gradients * float(law[9:-1])
    entry = {"name": name} | ({} if waits is None else {"waits": waits})
    tables = in_time([entry], {"law": law, "period": period}, rounds=4)
    tables["run"]["dtype"] = "float64"
    result = run_study(study_of(tables), runs=tmp_path)
    end = last(result, name)
    assert end["gradients"] == last(in_rounds, name)["gradients"]
    assert (end["updates"], end["time"]) == (4 * CLIENTS, 4 * period)
    if waits is not False:
        assert torch.equal(result.models(), in_rounds.models(name))
    else:  # sums over clients in another order, in double precision
        torch.testing.assert_close(
            result.models(), in_rounds.models(name), rtol=1e-10, atol=1e-12
        )


def test_a_straggler_slows_those_who_wait_and_nobody_else(tmp_path):
    """40 seconds, client 3 takes ten for a gradient: closed forms."""
    names = ("fedavg", "local", "server_sgd", "all_for_all", "ditto")
    time = {"speeds": [1, 1, 1, 10], "period": 5.0}
    entries = [{"name": n, "waits": n == "fedavg"} for n in names]
    tables = in_time(entries, time)
    result = run_study(study_of(tables), runs=tmp_path)
    assert work(result, "fedavg")["tasks"].tolist() == [4] * 4
    assert work(result, "fedavg")["busy"].tolist() == [4.0] * 3 + [40.0]
    assert work(result, "fedavg")["idle"].tolist() == [36.0] * 3 + [0.0]
    for name in names[1:-1]:
        assert work(result, name)["tasks"].tolist() == [40] * 3 + [4]
    # Its tasks are two gradients, one of each model.
    assert work(result, "ditto")["tasks"].tolist() == [20] * 3 + [2]
    for name in names[1:]:
        assert work(result, name)["idle"].tolist() == [0.0] * 4


def test_costs_are_right_by_hand(tmp_path):
    """Eight seconds of one second a gradient of four samples."""
    entries = [{"name": "fedavg"}, {"name": "local", "steps": 2}]
    flows = ("ditto", "server_sgd", "all_for_all")
    entries += [{"name": name, "waits": False} for name in flows]
    result = run_study(study_of(in_time(entries, {"period": 1.0})), runs=tmp_path)
    parameters = result.models().shape[1]
    answers = {name: 32 for name in ("fedavg", "server_sgd", "all_for_all")}
    answers |= {"local": 16, "ditto": 16}
    for name, count in answers.items():
        assert last(result, name)["updates"] == count
        assert last(result, name)["gradients"] == 8 * CLIENTS * 4
    models = {
        "fedavg": 2 * 32,  # there and back
        "local": 0,
        "ditto": CLIENTS + 2 * 16,  # and those that begin with a model
        "server_sgd": CLIENTS + 2 * 32,
        "all_for_all": 32,  # to the one other client of the cluster
    }
    for name, count in models.items():
        assert last(result, name)["bytes"] == count * parameters * 4


def test_messages_and_places_by_hand(tmp_path):
    """Two places, half a second there and back: 0-3, 0-3, 3-6, 3-10 of [2, 2, 2, 6]."""
    time = {"speeds": [2, 2, 2, 6], "links": "constant(0.5)", "capacity": 2}
    entries = [{"name": "fedavg"}, {"name": "server_sgd"}]
    tables = in_time(entries, {**time, "period": 10.0}, rounds=1)
    result = run_study(study_of(tables), runs=tmp_path)
    assert work(result, "fedavg")["tasks"].tolist() == [1] * 4
    # After 6 it is client 0's turn, and at 9 client 1's, whom no place is left for
    # before client 3 returns at 10.
    assert work(result, "server_sgd")["tasks"].tolist() == [2, 1, 1, 1]
    spans = result.records.spans
    mine = spans[spans["algorithm"] == "fedavg"].sort_values("client")
    assert mine["begin"].tolist() == [0.5, 0.5, 3.5, 3.5]
    assert mine["end"].tolist() == [2.5, 2.5, 5.5, 9.5]


def test_measured_times_are_replayed(tmp_path):
    path = tmp_path / "times.csv"
    rows = [f"{i},{c},{s}" for i in range(4) for c, s in enumerate((1, 3 + i))]
    path.write_text("\n".join(["client,number,seconds", *rows]))
    time = {"trace": str(path), "period": 12.0}
    entries = [{"name": "local"}, {"name": "fedavg"}]
    result = run_study(study_of(in_time(entries, time, rounds=1)), runs=tmp_path / "r")
    # 1, 4, 5, 8, 9, 12; 1, 5, 6, 10, 11; 1, 6, 7, 12; 1, 7, 8.
    assert work(result, "local")["tasks"].tolist() == [6, 5, 4, 3]
    # Turns of 1, 6, 1 seconds, and one that takes 6 more.
    assert work(result, "fedavg")["tasks"].tolist() == [3] * 4


def test_settings_are_chosen_within_the_same_virtual_time(tmp_path):
    tables = in_time([{"name": "fedavg"}, {"name": "server_sgd"}, {"name": "local"}])
    tables["tune"] = {"trials": 4, "halving": 2, "space": {"lr": [0.1, 0.2, 0.4, 0.8]}}
    result = run_study(study_of(tables), runs=tmp_path)
    trials = result.records.trials
    assert trials.groupby("algorithm")["spent"].sum().nunique() == 1
    for name in ("fedavg", "server_sgd", "local"):
        best = trials[(trials["algorithm"] == name) & (trials["status"] == "chosen")]
        lr = float(best["lr"].iloc[0])
        alone = run_study(
            study_of(in_time([{"name": name, "lr": lr}])), runs=tmp_path / name
        )
        assert torch.equal(alone.models(), result.models(name))


def test_newcomers_join_when_the_time_is_over(tmp_path):
    names = ("fedavg", "local", "ditto", "server_sgd")
    entries = [{"name": name} for name in names]
    entries[2]["waits"] = False
    result = run_study(study_of(in_time(entries, newcomers=1)), runs=tmp_path)
    table = result.records.newcomers
    assert table["algorithm"].tolist() == list(names)
    (joined,) = set(table["client"])
    assert joined not in set(result.records.clients["client"])
    assert joined not in set(result.records.work["client"])
    for name in names:
        assert result.newcomer_models(name).isfinite().all()
    shared = result.models("server_sgd")[:1]
    assert torch.equal(result.newcomer_models("server_sgd"), shared)


@pytest.mark.parametrize(
    "run",
    [
        {"dtype": "float64", "loop": True},
        {"participation": 0.5},
        {"rounds": 1},
        {"batch_size": 0},
        {"evaluate_every": 3},
    ],
    ids=str,
)
def test_settings_of_run_hold_in_time_too(full_run, tmp_path, run):
    tables = in_time(EVERY[:3], **run)
    result = run_study(study_of(tables), runs=tmp_path)
    assert result.records.metrics["test_loss"].notna().all()
    ends = result.records.rounds.groupby("algorithm")["round"].max()
    assert set(ends) == {tables["run"]["rounds"]}
    if run.get("loop"):
        for entry in tables["algorithm"]:
            # The one is in single and the other in double precision.
            torch.testing.assert_close(
                result.models(entry["name"]).float(),
                full_run.models(entry["name"]),
                rtol=1e-4,
                atol=1e-5,
            )


def test_half_of_the_clients_wait_for_each_other_only(tmp_path):
    """Turns take one second without client 3, and ten with it."""
    time = {"speeds": [1, 1, 1, 10], "period": 50.0}
    tables = in_time([{"name": "fedavg"}], time, rounds=1, participation=0.5)
    result = run_study(study_of(tables), runs=tmp_path)
    tasks = work(result, "fedavg")["tasks"].tolist()
    turns = sum(tasks) // 2
    slow = tasks[3]
    assert 10 * slow + (turns - slow) <= 50 < 10 * (slow + 1) + (turns - slow + 1)


BAD = """
from dataclasses import dataclass
from coterie.types import Algorithm, Flow, Task

@dataclass
class State:
    x: object

def nothing():
    return "nothing"

def workless():
    flow = Flow(
        State,
        lambda state, client, time: Task((state.x[client],), work=0.0),
        lambda state, now: now.clients,
        lambda state: state.x,
    )
    return Algorithm(flow=flow)
"""
REFUSED = [
    ("server_sgd", None, "server_sgd does not go by rounds: it needs a table [time]"),
    ("bad_time:workless", None, "does not go by rounds: it needs a table [time]"),
    ("bad_time:nothing", {}, "must return a coterie Algorithm, got 'nothing'"),
    ("server_sdg", {}, "Did you mean 'server_sgd'?"),
    ("server_sgd", {"speeds": [1, 2]}, "must have one entry per client, 4, got 2"),
    ("server_sgd", {"trace": "times.csv"}, "has 1 of client 4"),
    ("loss_network", {"capacity": 1}, "`capacity` cannot be set if tasks begin"),
    ("fedavg", {"speeds": "stragglers(1)"}, "takes 2 numbers"),
    ("local", {"links": "slow"}, "`time.links` must be one of"),
]
WRONG = [
    ({"name": "ditto", "waits": False}, False, "`waits` of ditto needs a table [time]"),
    ({"name": "ditto", "waits": "no"}, True, "must be true or false, got 'no'"),
    ({"name": "fedavg", "waits": False}, True, "must be true: fedavg goes round by"),
    ({"name": "agraf", "waits": True}, True, "must be false: agraf has no rounds"),
    ({"name": "ditto", "late": "adaptive"}, False, "'late' of ditto is used only with"),
    ({"name": "ditto", "late": "adaptive"}, True, "used only with `waits = false`"),
    ({"name": "ditto", "waits": False, "momentum": 0.5}, True, "used only in rounds"),
    ({"name": "local", "schedule": "cosine(9)"}, True, "used only in rounds"),
    ({"name": "server_sgd", "wait": 5}, True, "`wait` must be"),
]


@pytest.mark.parametrize(("entry", "with_time", "words"), WRONG)
def test_what_a_face_does_not_use_is_refused(tmp_path, entry, with_time, words):
    tables = in_time([entry], {})
    if not with_time:
        del tables["time"]
    assert words in study_runs.refused(tables, tmp_path)


def test_shared_ranges_are_searched_by_those_who_use_the_option():
    names = {"waiting": True, "flowing": False}
    entries = [{"name": "ditto", "label": n, "waits": w} for n, w in names.items()]
    tables = in_time(entries, {})
    space = {"late": ["constant", "adaptive"], "momentum": [0.0, 0.5], "lr": [0.1, 0.2]}
    tables["tune"] = {"trials": 4, "space": space}
    found = {e.label: set(e.tune) for e in study_of(tables).algorithms}
    assert found == {"waiting": {"lr", "momentum"}, "flowing": {"lr", "late"}}


@pytest.mark.parametrize(("name", "time", "words"), REFUSED)
def test_mistakes_give_one_sentence_and_nothing_is_written(
    tmp_path, monkeypatch, name, time, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "bad_time.py").write_text(BAD)
    rows = [f"{client},0,1" for client in range(5)]
    (tmp_path / "times.csv").write_text("\n".join(["client,number,seconds", *rows]))
    lines = ['data = {name = "digits"}', 'model = {name = "linear"}']
    lines += ['split = {name = "iid", clients = 4, max_samples = 40}']
    lines += ["run = {rounds = 2}", f"algorithm = [{{name = {name!r}}}]"]
    if time is not None:
        pairs = ", ".join(f"{key} = {value!r}" for key, value in time.items())
        lines.append(f"time = {{{pairs}}}")
    (tmp_path / "study.toml").write_text("\n".join(lines))
    assert words in refused("run", "study.toml", "--quiet")
    sys.modules.pop("bad_time", None)


def test_what_takes_no_time_ends_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bad_time.py").write_text(BAD)
    with pytest.raises(InputError, match="must take time, but at 0 virtual seconds"):
        entries = [{"name": "bad_time:workless"}]
        run_study(study_of(in_time(entries, {})), runs=tmp_path / "r")
    sys.modules.pop("bad_time", None)


def test_a_file_of_a_study_is_read_with_time_and_overridden(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text('[data]\nname = "digits"\n[time]\n[[algorithm]]\nname = "local"\n')
    found = read_study(path, ["time.law=constant(3)", "time.speeds=stragglers(1, 2)"])
    assert (found.time.law, found.time.period) == ("constant(3)", 6.0)  # of the slowest
    assert found.tables()["time"]["speeds"] == "stragglers(1, 2)"
    assert study_of(found.tables()) == found


def test_the_two_faces_of_a_method_in_one_study_are_two_algorithms(tmp_path):
    entries = [
        {"name": "all_for_all", "weights": "uniform"},
        {"name": "all_for_all", "weights": "uniform", "label": "not", "waits": False},
    ]
    time = {"speeds": [1, 1, 1, 10], "period": 5.0}
    result = run_study(study_of(in_time(entries, time)), runs=tmp_path)
    # In forty seconds, four turns of the slowest, or all that each has time for.
    assert work(result, "all_for_all")["tasks"].tolist() == [4] * 4
    assert work(result, "not")["tasks"].tolist() == [40, 40, 40, 4]


def time_of(**table):
    """The checked table [time] of a study."""
    return study_of({**TABLES, "time": table}).time


def seconds(time, client, count=1, seed=0, clients=None):
    drawn = time.clock(seed, clients).durations(
        torch.tensor([client]), torch.tensor([0]), count
    )
    return drawn[0].tolist()


@pytest.fixture
def measured_times(tmp_path):
    """Two times of each of four clients: 1 and 2, 3 and 4, ... seconds."""
    path = tmp_path / "times.csv"
    rows = [f"{i},{c},{2 * i + c + 1}" for i in range(4) for c in range(2)]
    path.write_text("\n".join(["client,number,seconds", *rows]))
    return str(path)


def test_a_gradient_takes_one_second_unless_said_otherwise():
    assert seconds(time_of(), 3, 2) == [1.0, 1.0]
    assert time_of().period == 1.0
    assert time_of().messages(0) is None


@pytest.mark.parametrize("speeds", [[1, 2.5, 4, 8], "stragglers(4, 2.5)"])
def test_speeds_are_factors_of_time(speeds):
    time = time_of(law="constant(0.5)", speeds=speeds)
    assert seconds(time, 1, clients=4) == [1.25]


def test_a_trace_gives_all_times_again_and_again(measured_times):
    time = time_of(trace=measured_times)
    assert seconds(time, 2, 3, clients=4) == [5.0, 6.0, 5.0]
    assert time.typical == 4.0  # the lower median of 1, 2, ..., 8


def test_seeds_of_a_study_draw_other_times():
    time = time_of(law="exponential(1)", links="exponential(1)")
    assert seconds(time, 0, 9, seed=1) != seconds(time, 0, 9, seed=2)
    who = torch.tensor([0])
    a, b = (time.messages(seed).relay_delays(who, who, 9).tolist() for seed in (1, 2))
    assert a != b


@pytest.mark.parametrize("value", [1e-9, 0.7, 1.2345, 1 / 3, 1e9])
def test_where_no_time_is_drawn_a_round_lasts_exactly_as_long_as_its_steps(value):
    tables = {**TABLES, "time": {"law": f"constant({value!r})"}}
    tables["algorithm"] = [{"name": "local", "steps": 3}, {"name": "fedavg"}]
    assert study_of(tables).time.period == 3 * value


def test_a_typical_time_is_the_median_of_the_law():
    # Of 40,000 draws, with the density 1/2 at the median: off by 0.5 % in deviation.
    time = time_of(law="exponential(10)", links="exponential(3)")
    assert time.typical == pytest.approx(10 * math.log(2), rel=0.025)
    assert time.typical_message == pytest.approx(3 * math.log(2), rel=0.025)
    assert time.period == pytest.approx(time.typical + 2 * time.typical_message)
    assert time_of(law="lognormal(7, 1)", period=2.0).period == 2.0


def test_a_typical_time_is_that_of_most_clients():
    assert time_of(speeds=[1, 1, 1, 50]).typical == 1.0
    assert time_of(speeds="stragglers(3, 50)").typical == 1.0


def test_a_period_is_a_round_that_waits_for_the_slowest(measured_times):
    assert time_of(speeds=[1, 2.5, 4, 0.5]).period == 4.0
    assert time_of(law="constant(0.5)", speeds="stragglers(2, 10)").period == 5.0
    assert time_of(speeds="stragglers(2, 0.1)").period == 1.0  # two are faster
    assert time_of(trace=measured_times).period == 7.0  # the lower median of 7 and 8
    assert time_of(links="constant(3)").period == 7.0  # to a client and back
    assert time_of(speeds="stragglers(2, 10)", period=2.0).period == 2.0


def test_edges_ring_once_in_a_typical_time_unless_said_otherwise():
    assert time_of(law="constant(4)").rates(3, 1.0).tolist() == [0.25] * 3
    assert time_of(law="constant(4)").rates(1, 5.0).tolist() == [0.05]
    assert time_of(law="constant(4)", rings=9.0).rates(2, 5.0).tolist() == [9.0] * 2


def test_the_table_is_read_again_as_it_was():
    for time in (time_of(speeds=[1, 2, 3, 4.5]), time_of(speeds="stragglers(1, 2)")):
        assert time_of(**time.table()) == time


BAD_TABLES = [
    ({"law": "constnat(1)"}, r"`time\.law` must be one of .*Did you mean 'constant'"),
    ({"law": "constant"}, r"`time\.law` constant takes 1 numbers"),
    ({"law": "constant(-1)"}, r"`time\.law s` must be at least 0, got -1"),
    ({"law": "constant(nan)"}, r"`time\.law s` must be a finite number, got nan"),
    ({"law": "constant(inf)"}, r"`time\.law s` must be a finite number, got inf"),
    ({"law": "constant(0)"}, r"`time\.law` must take some time, got 'constant\(0\)'"),
    ({"law": "constant(0)", "period": 1.0}, r"`time\.law` must take some time"),
    ({"law": "uniform(0, 0)"}, r"`time\.law` must take some time"),
    ({"law": 3}, r"`time\.law` must be text, got 3"),
    ({"links": "exponental(1)"}, r"`time\.links` must be .*Did you mean 'exponential'"),
    ({"links": "constant(-1)"}, r"`time\.links s` must be at least 0, got -1"),
    ({"availability": "sometimes"}, r"`availability` must be one of always, on_off"),
    (
        {"availability": "on_off(1e-6, 1e-6)"},
        r"`time\.availability` must change less often: 4 virtual seconds",
    ),
    ({"period": -1.0}, r"`time\.period` must be at least 0, got -1"),
    ({"period": math.nan}, r"`time\.period` must be a finite number, got nan"),
    ({"period": math.inf}, r"`time\.period` must be a finite number, got inf"),
    ({"period": "long"}, r"`time\.period` must be a number, got 'long'"),
    ({"rings": -1.0}, r"`time\.rings` must be at least 0, got -1"),
    ({"capacity": -1}, r"`time\.capacity` must be at least 0, got -1"),
    ({"capacity": 1.5}, r"`time\.capacity` must be a whole number, got 1\.5"),
    ({"speeds": 3}, r"`time\.speeds` must be a list of numbers or text, got 3"),
    ({"speeds": [1, 0, 1, 1]}, r"`time\.speeds\[1\]` must be greater than 0, got 0"),
    (
        {"speeds": [1, "a", 1, 1]},
        r"`time\.speeds\[1\]` must be a finite number, got 'a'",
    ),
    ({"speeds": [math.nan]}, r"`time\.speeds\[0\]` must be a finite number, got nan"),
    ({"speeds": "fast"}, r"`speeds` must be one of stragglers, got 'fast'"),
    ({"trace": "no.csv"}, r"cannot read the trace no\.csv"),
    ({"trace": "no.csv", "law": "constant(2)"}, r"`time\.trace` gives .*'no\.csv'"),
    ({"trace": "no.csv", "speeds": [1.0]}, r"`time\.trace` gives the times of all"),
    ({"trace": "no.csv", "availability": "on_off(1, 1)"}, r"`time\.trace` gives"),
    ({"clock": "constant(1)"}, r"\[time\] has no option 'clock'"),
]


@pytest.mark.parametrize(("table", "words"), BAD_TABLES, ids=str)
def test_what_cannot_be_used_is_refused_with_its_name(table, words, unchecked):
    refuses(words, time_of, **table)


def test_time_is_a_table():
    with pytest.raises(InputError, match=r"\[time\] must be a table, got 'soon'"):
        study_of({**TABLES, "time": "soon"})


def test_all_clients_need_times_and_nobody_else(measured_times):
    refuses(r"`time\.speeds` .* client, 4, got 2", Time(speeds=(1.0, 2.0)).clock, 0, 4)
    with pytest.raises(InputError, match=r"clients 0 to 2 .* has 2 of client 3"):
        Time(trace=measured_times).clock(0, 3)
    with pytest.raises(InputError, match=r"clients 0 to 4 .* has 0 of client 4"):
        Time(trace=measured_times).clock(0, 5)
