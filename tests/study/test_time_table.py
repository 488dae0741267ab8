"""The table [time]: how long things take, typical times, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.checks import InputError
from coterie.study.config import study_of
from coterie.study.tables import Time
from support.tiny_studies import TABLES


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


REFUSED = [
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


@pytest.mark.parametrize(("table", "words"), REFUSED, ids=[str(t) for t, _ in REFUSED])
def test_what_cannot_be_used_is_refused_with_its_name(table, words, unchecked):
    with pytest.raises(InputError, match=words):
        time_of(**table)


def test_time_is_a_table():
    with pytest.raises(InputError, match=r"\[time\] must be a table, got 'soon'"):
        study_of({**TABLES, "time": "soon"})


def test_all_clients_need_times_and_nobody_else(measured_times):
    with pytest.raises(InputError, match=r"`time\.speeds` .* client, 4, got 2"):
        Time(speeds=(1.0, 2.0)).clock(0, 4)
    with pytest.raises(InputError, match=r"clients 0 to 2 .* has 2 of client 3"):
        Time(trace=measured_times).clock(0, 3)
    with pytest.raises(InputError, match=r"clients 0 to 4 .* has 0 of client 4"):
        Time(trace=measured_times).clock(0, 5)
