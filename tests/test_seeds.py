"""Claims about random streams."""

from __future__ import annotations

import pytest
import torch

from coterie import seeds

# The first outputs of SplitMix64 from seed 1234567, as published with many
# implementations (for instance Rosetta Code, "Pseudo-random numbers/Splitmix64").
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
GOLDEN = 0x9E3779B97F4A7C15


def unsigned(pattern: int) -> int:
    return pattern % 2**64


def signed(value: int) -> int:
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


def splitmix64(state: int, size: int) -> list[int]:
    """The published algorithm, in Python's integers."""
    out = []
    for _ in range(size):
        state = (state + GOLDEN) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        out.append(z ^ (z >> 31))
    return out


@pytest.mark.parametrize("threads", [1, 2])
def test_the_output_function_gives_the_published_numbers(monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    states = torch.tensor([signed(1234567 + j * GOLDEN) for j in range(1, 6)])
    assert [unsigned(z) for z in seeds.mix(states).tolist()] == PUBLISHED


def test_every_client_draws_splitmix64_from_a_state_of_its_own():
    stream = seeds.key("a stream")
    clients = torch.tensor([0, 5, 123456789])
    rows = seeds.bits(stream, clients, 4).tolist()
    for client, row in zip(clients.tolist(), rows, strict=True):
        # The state is the output of SplitMix64, seeded by the stream, at this client.
        start = splitmix64(stream + client * GOLDEN, 1)[0]
        assert [unsigned(z) for z in row] == splitmix64(start, 4)


def test_draws_do_not_depend_on_which_other_clients_are_asked():
    everybody = seeds.bits(7, torch.arange(6), 5)
    some = torch.tensor([4, 1])
    assert torch.equal(seeds.bits(7, some, 5), everybody[some])
    assert torch.equal(seeds.bits(7, torch.tensor([3]), 5)[0], everybody[3])


def test_a_longer_draw_begins_with_the_shorter_one():
    clients = torch.arange(3)
    assert torch.equal(seeds.bits(1, clients, 9)[:, :4], seeds.bits(1, clients, 4))


def test_keys_depend_on_every_name_and_on_their_order():
    names = [(0, "a", 1), (0, "a", 2), (1, "a", 0), ("a", 0, 1), (0, "a"), (0, "a1")]
    assert len({seeds.key(*name) for name in names}) == len(names)
    assert seeds.key(0, "a", 1) == seeds.key(0, "a", 1)


def test_a_number_and_its_text_are_different_names():
    assert seeds.key(1) != seeds.key("1")


def test_draws_below_a_limit_stay_in_range():
    limits = torch.tensor([1, 2, 3, 10, 2**20 + 1, 2**31 - 1, 2**31])
    draws = seeds.integers_below(limits, seeds.key("range"), torch.arange(7), 2000)
    assert (draws >= 0).all()
    assert (draws < limits[:, None]).all()
    assert (draws[0] == 0).all()
    # A uniform draw misses the upper half 2000 times with probability 2^-2000.
    assert (draws[4:].amax(1) > limits[4:] // 2).all()


def test_draws_below_a_limit_are_uniform():
    cells, size = 8, 2000
    clients = torch.arange(20)
    limits = torch.full((20,), cells)
    draws = seeds.integers_below(limits, seeds.key("uniform"), clients, size)
    for values in (draws.flatten(), draws[:, 0::2].flatten(), draws[3]):
        counts = torch.bincount(values, minlength=cells).double()
        expected = len(values) / cells
        statistic = float(((counts - expected) ** 2 / expected).sum())
        # 24.32 is the 0.999 quantile of chi-square with 7 degrees of freedom.
        assert statistic < 24.32


def test_streams_and_clients_are_uncorrelated():
    size = 4000
    first = seeds.integers_below(torch.tensor([2, 2]), 1, torch.tensor([0, 1]), size)
    second = seeds.integers_below(torch.tensor([2, 2]), 2, torch.tensor([0, 1]), size)
    for a, b in ((first[0], first[1]), (first[0], second[0]), (first[1], second[0])):
        agreement = float((a == b).double().mean())
        # Four standard deviations of a fair coin's mean, level 6e-5.
        assert abs(agreement - 0.5) < 4 * 0.5 / size**0.5


def test_generators_of_equal_names_draw_the_same_and_leave_the_global_one_alone():
    before = torch.get_rng_state()
    first = torch.rand(3, generator=seeds.generator(0, "x", 1))
    second = torch.rand(3, generator=seeds.generator(0, "x", 1))
    other = torch.rand(3, generator=seeds.generator(0, "y", 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
