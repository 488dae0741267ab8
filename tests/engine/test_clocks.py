"""Claims about virtual time: exact names, laws, availability, traces, rings."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.checks import InputError
from coterie.engine import laws
from coterie.engine.clocks import Clock, Delays, Rings, clock, trace
from support.refusals import refuses

REAL = torch.float64
LAWS = [
    "constant(2)",
    "exponential(2)",
    "lognormal(2, 0.7)",
    "pareto(2, 3)",
    "uniform(1, 4)",
]
MASK = 2**64 - 1


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def real(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=REAL)


def drawn(law: str, clients: int, count: int, *, seed=0, **settings) -> torch.Tensor:
    """The first times of so many clients."""
    who = torch.arange(clients)
    return clock(law, seed=seed, **settings).durations(who, 0 * who, count)


def one_mix(z: int) -> int:
    """SplitMix64's output function, in Python's integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def one_uniform(stream: int, *names: int) -> float:
    """One draw by plain integers; the last name is the number of the draw."""
    z = stream & MASK
    for name in names:
        z = one_mix(z + one_mix(name) & MASK)
    return ((z >> 12) + 0.5) / 2**52


def one_time(law: str, stream: int, *names: int) -> float:
    """One time by the functions of the standard library."""
    word, _, inside = law.rstrip(")").partition("(")
    a, b = [*(float(part) for part in inside.split(",")), 0.0][:2]
    if word == "lognormal":
        *name, c = names
        u, v = (one_uniform(stream, *name, 2 * c + part) for part in (0, 1))
        z = math.sqrt(-2 * math.log(u)) * math.sin(math.pi * (v - 0.5))
        return a * math.exp(b * z)
    u = one_uniform(stream, *names)
    return {
        "constant": lambda: a,
        "exponential": lambda: -a * math.log(u),
        "pareto": lambda: a * u ** (-1 / b),
        "uniform": lambda: a + (b - a) * u,
    }[word]()


@pytest.mark.parametrize("law", LAWS)
def test_times_are_those_of_a_plain_loop_over_names(law):
    stream = seeds.key(5, "compute")
    clients, first = whole(0, 7, 123456789), whole(3, 0, 10**12)
    found = clock(law, seed=5).durations(clients, first, 4)
    expected = [
        [one_time(law, stream, client, number + c) for c in range(4)]
        for client, number in zip(clients.tolist(), first.tolist(), strict=True)
    ]
    # A few roundings of numbers near 1 in double precision, in another order.
    assert_close(found, torch.tensor(expected, dtype=REAL), rtol=1e-14, atol=0)


@pytest.mark.parametrize("law", LAWS)
def test_blocks_orders_and_company_do_not_change_a_time(law):
    ours = clock(law, speeds="stragglers(2, 3)", seed=1)
    clients = torch.arange(7)
    everything = ours.durations(clients, torch.zeros(7, dtype=torch.int64), 40)
    assert everything.dtype == REAL
    for size in (1, 3, 8, 11):  # the last of which do not fill a vector register
        parts = [
            ours.durations(clients, torch.full((7,), start), min(size, 40 - start))
            for start in range(0, 40, size)
        ]
        assert torch.equal(torch.cat(parts, 1), everything)
    some, first = whole(6, 2, 6), whole(5, 0, 30)
    rows = [everything[i, c : c + 9] for i, c in ((6, 5), (2, 0), (6, 30))]
    assert torch.equal(ours.durations(some, first, 9), torch.stack(rows))
    for client in range(7):
        alone = ours.durations(whole(client), whole(0), 40)
        assert torch.equal(alone[0], everything[client])
    again = drawn(law, 7, 40, speeds="stragglers(2, 3)", seed=1)
    assert torch.equal(again, everything)


@pytest.mark.parametrize("name", ["log", "exp", "sin"])
def test_own_functions_round_as_python_does_and_wherever_a_value_lies(name):
    # Sums, products and quotients of Python's doubles, in the same order.
    def series(x, coefficients):
        total = 0.0
        for coefficient in reversed(coefficients):
            total = total * x + coefficient
        return total

    def log(x):
        m, e = math.frexp(x)
        if m < math.sqrt(0.5):
            m, e = 2 * m, e - 1
        s = (m - 1) / (m + 1)
        artanh = series(s * s, [1 / (2 * k + 1) for k in range(12)])
        return 2 * s * artanh + e * math.log(2)

    def exp(x):
        k = round(x / math.log(2))
        terms = [1 / math.factorial(j) for j in range(15)]
        return math.ldexp(series(x - k * math.log(2), terms), k)

    def sin(x):
        terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(12)]
        return x * series(x * x, terms)

    plain = {"log": log, "exp": exp, "sin": sin}[name]
    inputs = torch.rand(4003, generator=seeds.generator("own", name), dtype=REAL)
    if name == "log":
        # Near 0 the smallest draw that there is, near 1 the largest.
        inputs = torch.cat([inputs, inputs**8 + 2.0**-53, real(2.0**-53, 1 - 2.0**-53)])
    else:
        inputs = (inputs - 0.5) * (math.pi if name == "sin" else 860)
    function = getattr(laws, {"log": "log"}.get(name, f"_{name}"))
    expected = torch.tensor([plain(x) for x in inputs.tolist()], dtype=REAL)
    assert torch.equal(function(inputs), expected)
    assert torch.equal(function(inputs[1::3]), expected[1::3])
    exact = torch.tensor([getattr(math, name)(x) for x in inputs.tolist()], dtype=REAL)
    # The rounding of k log 2 is relative to the argument of exp, at most 430.
    tolerance = 430 * 2**-52 if name == "exp" else 4 * 2**-52
    assert_close(function(inputs), exact, rtol=tolerance, atol=2**-52)


def normal(q: float) -> float:
    return NormalDist().inv_cdf(q)


# Mean, standard deviation and quantiles, in closed form.
CLOSED = {
    "exponential(2)": (2, 2, lambda q: -2 * math.log(1 - q)),
    "lognormal(2, 0.7)": (
        2 * math.exp(0.245),
        2 * math.exp(0.245) * math.sqrt(math.exp(0.49) - 1),
        lambda q: 2 * math.exp(0.7 * normal(q)),
    ),
    "pareto(2, 3)": (3, math.sqrt(3), lambda q: 2 * (1 - q) ** (-1 / 3)),
    "uniform(1, 4)": (2.5, math.sqrt(0.75), lambda q: 1 + 3 * q),
}


@pytest.mark.parametrize("law", CLOSED)
@pytest.mark.parametrize("shape", [(20, 1000), (20000, 1)])
def test_laws_have_their_means_and_quantiles(law, shape):
    times = drawn(law, *shape)
    mean, deviation, quantile = CLOSED[law]
    n = times.numel()
    # Five standard errors, level 6e-7.
    assert abs(float(times.mean()) - mean) < 5 * deviation / math.sqrt(n)
    for q in (0.01, 0.1, 0.5, 0.9, 0.99, 0.999):
        share = float((times <= quantile(q)).double().mean())
        assert abs(share - q) < 5 * math.sqrt(q * (1 - q) / n)
    least = {"pareto(2, 3)": 2, "uniform(1, 4)": 1}.get(law, 0)
    assert (times > least).all()


def test_neighbouring_numbers_clients_and_seeds_are_uncorrelated():
    one, other = (drawn("uniform(0, 1)", 200, 100, seed=s) - 0.5 for s in (0, 1))
    pairs = (one[:, 1:], one[:, :-1]), (one[1:], one[:-1]), (one, other)
    for a, b in pairs:
        # A product of two uniforms of mean 0 has standard deviation 1/12.
        assert abs(float((a * b).mean())) < 5 / 12 / math.sqrt(a.numel())


def test_a_constant_time_may_be_zero_and_all_times_are_finite():
    assert torch.equal(drawn("constant(0)", 3, 2), torch.zeros(3, 2, dtype=REAL))
    for law in ("pareto(1e12, 0.1)", "lognormal(1e12, 50)", "lognormal(1, 0)"):
        times = drawn(law, 3, 2000, speeds=[1e12] * 3)
        assert torch.isfinite(times).all() and (times > 0).all()
    assert torch.equal(times, torch.full((3, 2000), 1e12, dtype=REAL))


def test_no_count_gives_no_times():
    assert drawn("exponential(1)", 2, 0).shape == (2, 0)


def test_speeds_multiply_the_times():
    plain = drawn("exponential(1)", 4, 5)
    factors = [1.0, 10.0, 0.5, 2.0]
    expected = plain * torch.tensor(factors, dtype=REAL)[:, None]
    for speeds in (factors, torch.tensor(factors), torch.tensor(factors, dtype=REAL)):
        assert torch.equal(drawn("exponential(1)", 4, 5, speeds=speeds), expected)
    slow = drawn("exponential(1)", 4, 5, speeds="stragglers(2, 10)")
    assert torch.equal(slow, plain * real(10, 10, 1, 1)[:, None])


def test_clients_without_a_speed_are_unknown():
    ours = clock("exponential(1)", [1.0, 2.0])
    message = "`clients` must be between 0 and 1, got 2"
    refuses(message, ours.durations, whole(0, 2), whole(0, 0), 1)


def test_whoever_is_always_there_begins_at_once():
    for availability in (None, "always"):
        ours = clock("constant(1)", availability=availability)
        assert ours.ready(3, 12.5) == 12.5


def plain_periods(client: int, on: float, off: float, seed: int, until: float):
    """Periods [start, end) in which a client is on, and those in which it is off."""
    stream = seeds.key(seed, "on")
    is_on = one_uniform(stream, client, 0) < on / (on + off)
    # The draw after the first belongs to a period on, whether it is there or not.
    number, start = (1 if is_on else 2), 0.0
    while start <= until:
        mean = on if is_on else off
        end = start - mean * math.log(one_uniform(stream, client, number))
        yield is_on, start, end
        is_on, start, number = not is_on, end, number + 1


@pytest.mark.parametrize("client", [0, 1, 2, 3, 99])
def test_work_begins_only_in_periods_that_are_on(client):
    ours = clock("constant(1)", availability="on_off(3, 1)", seed=4)
    states = set()
    for is_on, start, end in plain_periods(client, 3, 1, 4, until=500):
        states.add(is_on)
        middle = (start + end) / 2
        found = ours.ready(client, middle)
        # Sums of up to 500 lengths, whose logarithms are rounded in another way.
        assert found == middle if is_on else found == pytest.approx(end, rel=1e-13)
        assert ours.ready(client, found) == found
    assert states == {True, False}


def test_availability_depends_on_nothing_asked_before():
    times = [0.0, 700.0, 3.5, 90.0, 0.25, 12.0]
    ours = clock("constant(1)", availability="on_off(1, 2)")
    answers = [ours.ready(client, time) for client in (0, 5) for time in times]
    alone = [
        clock("constant(1)", availability="on_off(1, 2)").ready(client, time)
        for client in (0, 5)
        for time in times
    ]
    assert answers == alone
    assert all(after >= time for after, time in zip(answers, times * 2, strict=True))


def test_the_share_of_clients_that_are_on_is_the_same_at_all_times():
    ours = clock("constant(1)", availability="on_off(3, 1)")
    n = 1000
    for time in (0.0, 1.0, 37.0):
        waits = torch.tensor([ours.ready(client, time) - time for client in range(n)])
        share = float((waits == 0).double().mean())
        # Five standard errors of a share.
        assert abs(share - 0.75) < 5 * math.sqrt(0.75 * 0.25 / n)
        # Who is off waits for an exponential time of mean and deviation 1: no memory.
        off = waits[waits > 0]
        assert abs(float(off.mean()) - 1) < 5 / math.sqrt(len(off))


HEADER = "client,number,seconds\n"


def test_a_trace_is_replayed_and_starts_again(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(HEADER + "1,0,5\n0,1,2.5\n0,0,1.5\n0,2,3\n", encoding="utf-8")
    ours = trace(path)
    found = ours.durations(whole(1, 0, 0), whole(7, 0, 5), 4)
    expected = [[5, 5, 5, 5], [1.5, 2.5, 3, 1.5], [3, 1.5, 2.5, 3]]
    assert torch.equal(found, torch.tensor(expected, dtype=REAL))
    assert ours.ready(0, 2.0) == 2.0
    assert isinstance(ours, Clock) and isinstance(clock("constant(1)"), Clock)
    assert torch.equal(
        trace(str(path), clients=2).durations(whole(0), whole(2), 1), real(3)[None]
    )
    with pytest.raises(InputError, match="`clients` must be between 0 and 1, got 2"):
        ours.durations(whole(2), whole(0), 1)


def test_columns_of_a_trace_may_be_in_any_order_among_others(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("seconds,host,client,number\n2,a,0,0\n", encoding="utf-8")
    assert trace(path).durations(whole(0), whole(0), 1).item() == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have times, but it has no rows"),
        (HEADER, "must have times, but it has no rows"),
        ("client,seconds\n0,1\n", "has no column 'number'"),
        (HEADER + "0,0,1\n0,1,-2\n", r"row 3 .* seconds > 0, got \['0', '1', '-2'\]"),
        (HEADER + "0,0,0\n", "row 2 .* seconds > 0"),
        (HEADER + "0,0,nan\n", "row 2 .* seconds > 0, .*'nan'"),
        (HEADER + "0,0,inf\n", "row 2 .* seconds > 0, .*'inf'"),
        (HEADER + "0,0,fast\n", "row 2 .* seconds > 0, .*'fast'"),
        (HEADER + "0,0\n", "row 2 .* seconds > 0, .*None"),
        (HEADER + "-1,0,1\n", "row 2 .* must have a client from 0 on"),
        (HEADER + "ward,0,1\n", "row 2 .* must have a client from 0 on"),
        (HEADER + "0,-1,1\n", "row 2 .* a number of its own from 0 on"),
        (HEADER + "0,0,1\n0,0,2\n", "row 3 .* a number of its own from 0 on"),
        (HEADER + "0,0,1\n0,2,2\n", "times of client 0 0, 1, .*, but 1 is missing"),
        (HEADER + "1,0,1\n", "of clients 0 to 1 .*, but it has 0 of client 0"),
        (HEADER + "0,0,1\n2,0,1\n", "of clients 0 to 2 .*, but it has 0 of client 1"),
    ],
)
def test_bad_traces_are_refused_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "times.csv"
    path.write_text(text, encoding="utf-8")
    refuses(message, trace, path)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (1, "of clients 0 to 0 and nobody else, but it has 1 of client 1"),
        (3, "of clients 0 to 2 and nobody else, but it has 0 of client 2"),
    ],
)
def test_traces_of_other_clients_are_refused(tmp_path, clients, message):
    path = tmp_path / "times.csv"
    path.write_text(HEADER + "0,0,1\n1,0,1\n", encoding="utf-8")
    refuses(message, trace, path, clients=clients)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.csv"):
        refuses("cannot read the trace", trace, path)
    (tmp_path / "bytes.csv").write_bytes(b"client\xff\xfe")
    refuses("cannot read the trace", trace, tmp_path / "bytes.csv")


@pytest.mark.parametrize("law", LAWS)
def test_both_ends_know_the_same_delays(law):
    ours = Delays(law, seed=2)
    there, back = torch.tensor([[0, 1], [5, 2]]), torch.tensor([[1, 0], [2, 5]])
    first = whole(0, 3)
    found = ours.delays(there, first, 6)
    assert torch.equal(found, Delays(law, seed=2).delays(back, first, 6))
    alone = ours.delays(back[1:], whole(5), 1)
    assert torch.equal(alone, found[1:, 2:3])
    stream = seeds.key(2, "delay")
    expected = [
        [one_time(law, stream, *pair, number + c) for c in range(6)]
        for pair, number in (((0, 1), 0), ((2, 5), 3))
    ]
    # As for the times of clients.
    assert_close(found, torch.tensor(expected, dtype=REAL), rtol=1e-14, atol=0)


def test_every_pair_has_delays_of_its_own():
    pairs = torch.combinations(torch.arange(60))
    found = Delays("exponential(1)").delays(pairs, 0 * pairs[:, 0], 3)
    assert len(found.unique()) == found.numel()
    # Five standard errors of an exponential law's mean.
    assert abs(float(found.mean()) - 1) < 5 / math.sqrt(found.numel())


EDGES = torch.tensor([[0, 1], [2, 1], [0, 7]])
RATES = real(1.0, 0.5, 4.0)


def test_rings_are_running_sums_of_exponential_gaps():
    found = Rings(EDGES, RATES, seed=3).times(torch.arange(3), whole(0, 0, 0), 50)
    stream = seeds.key(3, "ring")
    for row, pair, rate in zip(
        found, ((0, 1), (1, 2), (0, 7)), RATES.tolist(), strict=True
    ):
        now = 0.0
        for c, time in enumerate(row.tolist()):
            now -= math.log(one_uniform(stream, *pair, c)) / rate
            # Fifty additions, each with a relative error of 2^-53, and logarithms.
            assert time == pytest.approx(now, rel=1e-13)


def test_rings_are_the_same_in_blocks_from_any_number_and_at_both_ends():
    ours = Rings(EDGES, RATES, seed=3)
    which = torch.arange(3)
    everything = ours.times(which, 0 * which, 9000)  # more than two blocks of sums
    assert (everything.diff(dim=1) > 0).all()
    # Without what was before, and with edges at different numbers.
    for first in (whole(0, 4095, 4096), whole(8999, 4097, 1), whole(8191, 8192, 8193)):
        rows = [everything[j, c : c + 1] for j, c in enumerate(first.tolist())]
        assert torch.equal(ours.times(which, first, 1), torch.stack(rows))
    # From what was before, in blocks.
    since, parts = torch.zeros(3, dtype=REAL), []
    for start in range(0, 60, 7):
        parts.append(ours.times(which, torch.full((3,), start), 7, since))
        since = parts[-1][:, -1]
    assert torch.equal(torch.cat(parts, 1), everything[:, :63])
    # Client 1 knows its two edges alone, named the other way round.
    site = Rings(torch.tensor([[1, 2], [1, 0]]), real(0.5, 1.0), seed=3)
    found = site.times(whole(1, 0), whole(0, 0), 20)
    assert torch.equal(found, everything[:2, :20])


def test_rings_of_twice_the_rate_come_in_half_the_time():
    which = torch.arange(3)
    plain = Rings(EDGES, RATES).times(which, 0 * which, 30)
    fast = Rings(EDGES, 2 * RATES).times(which, 0 * which, 30)
    assert torch.equal(fast, plain / 2)


def test_counts_of_rings_are_those_of_a_poisson_process():
    edges = torch.combinations(torch.arange(64))[:2000]
    rings = Rings(edges, torch.full((2000,), 2.0, dtype=REAL))
    times = rings.times(torch.arange(2000), torch.zeros(2000, dtype=torch.int64), 60)
    counts = ((times > 3) & (times <= 8)).double().sum(1)
    assert (times[:, -1] > 8).all()
    # Mean and variance are 10; five standard errors, where the squared deviation of a
    # Poisson count has variance m (1 + 2 m).
    assert abs(float(counts.mean()) - 10) < 5 * math.sqrt(10 / 2000)
    spread = float(((counts - 10) ** 2).mean())
    assert abs(spread - 10) < 5 * math.sqrt(10 * 21 / 2000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"law": "gamma(1)"}, "`law` must be one of .*'gamma'"),
        ({"law": "exponentail(1)"}, "Did you mean 'exponential'"),
        (
            {"law": "exponential"},
            "`law` exponential takes 1 numbers, got 'exponential'",
        ),
        ({"law": "pareto(1)"}, r"`law` pareto takes 2 numbers, got 'pareto\(1\)'"),
        ({"law": "pareto(1, x)"}, "`law` must have numbers in its brackets"),
        ({"law": "pareto(1"}, "`law` must read like"),
        ({"law": "constant(-1)"}, r"`law s` must be at least 0, got -1\.0"),
        ({"law": "constant(nan)"}, "`law s` must be a finite number, got nan"),
        ({"law": "exponential(0)"}, r"`law mean` must be greater than 0, got 0\.0"),
        ({"law": "exponential(inf)"}, "`law mean` must be a finite number, got inf"),
        ({"law": "exponential(1e13)"}, r"`law mean` must be at most 1e\+12"),
        ({"law": "lognormal(0, 1)"}, "`law median` must be greater than 0"),
        ({"law": "lognormal(1, -1)"}, "`law sigma` must be at least 0"),
        ({"law": "lognormal(1, 51)"}, "`law sigma` must be at most 50"),
        ({"law": "pareto(0, 2)"}, "`law least` must be greater than 0"),
        ({"law": "pareto(1, 0.05)"}, r"`law alpha` must be at least 0\.1, got 0\.05"),
        ({"law": "uniform(-1, 2)"}, "`law low` must be at least 0"),
        ({"law": "uniform(3, 2)"}, r"`law high` must be at least 3, got 2\.0"),
        ({"speeds": [1.0, 0.0]}, r"`speeds\[1\]` must be greater than 0, got 0\.0"),
        ({"speeds": [math.nan]}, r"`speeds\[0\]` must be a finite number, got nan"),
        ({"speeds": real(1, -2)}, r"`speeds\[1\]` must be greater than 0, got -2\.0"),
        ({"speeds": "slow(1, 2)"}, "`speeds` must be one of stragglers"),
        ({"speeds": "stragglers(2)"}, "`speeds` stragglers takes 2 numbers"),
        ({"speeds": "stragglers(1.5, 2)"}, r"`speeds count` must be a whole .* 1\.5"),
        ({"speeds": "stragglers(-1, 2)"}, "`speeds count` must be at least 0"),
        ({"speeds": "stragglers(1, 0)"}, "`speeds factor` must be greater than 0"),
        ({"availability": "never"}, "`availability` must be one of always, on_off"),
        ({"availability": "on_off(1)"}, "`availability` on_off takes 2 numbers"),
        ({"availability": "on_off(0, 1)"}, "`availability on` must be greater than 0"),
        ({"availability": "on_off(1, 0)"}, "`availability off` must be greater than 0"),
        ({"availability": "always(1)"}, "`availability` always takes 0 numbers"),
        ({"seed": -1}, "`seed` must be at least 0, got -1"),
    ],
)
def test_bad_settings_are_refused_by_name_and_value(settings, message):
    refuses(message, clock, **{"law": "constant(1)", **settings})


def test_bad_laws_and_seeds_of_delays_are_refused():
    refuses("`law mean` must be greater than 0", Delays, "exponential(0)")
    refuses("`seed` must be at least 0", Delays, "constant(1)", seed=-1)


@pytest.mark.parametrize(
    ("edges", "rates", "message"),
    [
        ([[0, 0]], [1], r"`edges` must join two different clients, got \[0, 0\]"),
        ([[0, -1]], [1], "`edges` must be at least 0, got -1"),
        ([[0, 1], [1, 0]], [1, 1], r"`edges` must differ, but \[0, 1\] is there twice"),
        ([[0, 1], [1, 2]], [1, 0], r"`rates\[1\]` must be at least 1e-12, got 0\.0"),
        ([[0, 1]], [math.nan], r"`rates\[0\]` must be a finite number, got nan"),
    ],
)
def test_bad_edges_and_rates_are_refused(edges, rates, message):
    refuses(message, Rings, torch.tensor(edges), torch.tensor(rates, dtype=REAL))


def test_every_client_has_one_speed(unchecked):
    with pytest.raises(InputError, match=r"`speeds\[0\]` must be a finite number"):
        clock("constant(1)", speeds=torch.ones(2, 2))


def test_every_edge_has_one_rate(unchecked):
    refuses("`rates` must have one entry per edge, 3", Rings, EDGES, real(1.0))


def test_bad_questions_are_refused():
    ours = clock("constant(1)", availability="on_off(1, 1)")
    with pytest.raises(InputError, match="`clients` must be at least 0, got -1"):
        ours.durations(whole(-1), whole(0), 1)
    with pytest.raises(InputError, match="`first` must be at least 0, got -2"):
        ours.durations(whole(1), whole(-2), 1)
    refuses("`count` must be at least 0, got -1", laws.numbers, whole(0), -1)
    refuses("`client` must be at least 0, got -1", ours.ready, -1, 1.0)
    for time in (-1.0, math.nan, math.inf, 1e9):  # the last is too many periods away
        refuses("`time` must be", ours.ready, 0, time)
    with pytest.raises(InputError, match="two different clients"):
        Delays("constant(1)").delays(torch.tensor([[3, 3]]), whole(0), 1)


def test_rows_of_a_trace_are_counted_as_in_the_file(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("client,number,seconds\n0,0,1.5\n\n0,1,-2\n")
    refuses(r"row 4 of the trace .* got \['0', '1', '-2'", trace, path)
