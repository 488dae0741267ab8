"""Claims about groups that divide: directions, sides, evidence, phases, names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from coterie.collaboration.divisions import (
    CONTEST,
    PIECES,
    REST,
    TRIAL,
    BetterBy,
    Evidence,
    PhaseClock,
    better_by,
    one_group,
    places,
    with_directions,
    with_evidence,
)
from coterie.collaboration.pieces import pieces, sides, sketch_rows
from support.draws import rng

REAL = torch.float64
EXACT = {"rtol": 1e-10, "atol": 1e-12}
N, D = 6, 5
SHARES = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=REAL)
ALL = torch.arange(N)
ZERO = torch.zeros(N, dtype=torch.long)
SECOND = torch.tensor([0, 0, 0, 0, 1, 1])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=REAL)


# Sketches.


def test_small_vectors_are_their_own_sketch():
    v = normal(4, 256)
    assert torch.equal(sketch_rows(v), v)


def test_a_sketch_is_linear_and_has_256_numbers():
    u, v = normal(2, 300), normal(2, 300, seed=1)
    assert sketch_rows(u).shape == (2, 256)
    assert_close(
        sketch_rows(2 * u - 3 * v), 2 * sketch_rows(u) - 3 * sketch_rows(v), **EXACT
    )
    assert torch.equal(sketch_rows(u), sketch_rows(u))


def test_every_column_is_in_one_bucket_with_a_sign():
    found = sketch_rows(torch.eye(300, dtype=REAL))
    assert ((found != 0).sum(1) == 1).all()
    assert (found.abs().sum(1) == 1).all()
    # Both signs, and no bucket has many: 300 / 256 are expected.
    assert 100 < int((found > 0).sum()) < 200
    assert (found != 0).sum(0).max() < 8


def test_products_of_sketches_are_those_of_vectors_on_average():
    """Of vectors of 257 to 656 columns, each of which has signs of its own.

    The variance of a product is below 2 |u|^2 |v|^2 / 256.
    """
    errors = []
    for columns in range(257, 657):
        u, v = normal(2, columns, seed=columns)
        exact = u @ v + 0.5 * u @ u  # also of a vector that is not orthogonal
        found = sketch_rows(torch.stack([u, v + 0.5 * u]))
        scale = u.norm() * (v + 0.5 * u).norm()
        errors.append(float((found[0] @ found[1] - exact) / scale))
    assert abs(np.mean(errors)) < 4 * np.sqrt(2 / 256 / 400)
    assert np.mean(np.square(errors)) < 2 / 256 * 1.2


# Sides.


def planted(side=SECOND, noise=0.1) -> torch.Tensor:
    """Updates along one axis or the other, of different lengths, with some noise."""
    axes = torch.eye(D, dtype=REAL)[:2]
    length = torch.tensor([1.0, 9.0, 2.0, 0.5, 3.0, 0.1], dtype=REAL)
    return length[:, None] * (axes[side] + noise * normal(N, D))


def test_two_planted_directions_are_two_sides_whatever_their_lengths():
    """The fewer are side 1: along the direction they are farther from the mean."""
    assert sides(planted(), ZERO).tolist() == SECOND.tolist()
    assert sides(planted(1 - SECOND), ZERO).tolist() == SECOND.tolist()


def test_relabelling_clients_relabels_their_sides():
    direction, member = normal(N, D, seed=3), torch.tensor([0, 1, 0, 0, 1, 1])
    there = sides(direction, member)
    assert there.any()
    for seed in range(5):
        order = torch.randperm(N, generator=rng(seed))
        assert torch.equal(sides(direction[order], member[order]), there[order])


def test_sides_are_found_in_each_group_by_its_members_alone():
    direction = torch.cat([planted(), 7 * normal(N, D, seed=4)])
    member = torch.tensor([0] * N + [2] * N)
    found = sides(direction, member)
    assert found[:N].tolist() == SECOND.tolist()
    assert torch.equal(found[N:], sides(direction[N:], ZERO))


def test_one_client_that_differs_from_all_is_a_side():
    direction = torch.ones(N, D, dtype=REAL) + 0.05 * normal(N, D)
    direction[2] = -direction[2]
    assert sides(direction, ZERO).tolist() == [0, 0, 1, 0, 0, 0]


def test_where_both_sides_are_alike_rounding_does_not_say_which_is_which():
    for seed in range(20):
        half, member = normal(2, D, seed=seed), torch.zeros(4, dtype=torch.long)
        four = torch.cat([half, -half])
        found = sides(four, member)
        assert found.sum() == 2
        rounded = four * (1 + 1e-12 * normal(4, D, seed=99))
        assert torch.equal(sides(rounded, member), found)
        assert torch.equal(sides(four.flip(0), member), found.flip(0))


def test_two_clients_have_no_sides_since_each_has_a_model_of_its_own():
    assert not sides(normal(2, D), torch.zeros(2, dtype=torch.long)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_directions_have_no_sides(dtype):
    axis = normal(1, D).to(dtype)
    length = torch.tensor([[1.0], [7.0], [0.3], [2.0], [1.1], [4.0]], dtype=dtype)
    assert not sides(length * axis, ZERO).any()
    assert not sides(torch.zeros(N, D, dtype=dtype), ZERO).any()


def test_one_client_has_no_sides_nor_have_those_without_directions():
    assert sides(normal(1, D), torch.zeros(1, dtype=torch.long)).tolist() == [0]
    assert not sides(normal(N, D), ALL).any()  # everybody is a group
    direction = planted()
    direction[[0, 5]] = 0
    assert sides(direction, ZERO).tolist() == [0, 0, 0, 0, 1, 0]


# Places.


def coordinator(member=ZERO, **fields):
    """After a rest, with 20 held-out samples of each client."""
    first = one_group(SHARES, torch.full((N,), 20.0, dtype=REAL), D)
    return first._replace(member=member, pair=member, **fields)


def test_places_tell_sizes_of_groups_and_shares_of_halves():
    of = coordinator(
        torch.tensor([0, 1, 0, 2, 1, 1]),
        pick=torch.tensor([1, 0, 0, 1, 1, 0]),
        clock=PhaseClock(CONTEST),
    )
    found = places(of)
    assert torch.equal(found.member, of.member)
    assert found.together.tolist() == [2, 3, 2, 1, 3, 3]
    shares = [1 / 4, 5 / 13, 1 / 4, 1, 5 / 13, 5 / 13]
    assert_close(found.second, torch.tensor(shares, dtype=REAL), **EXACT)
    assert found.phase.tolist() == [CONTEST] * N
    assert found.groups.tolist() == found.pairs.tolist() == [3] * N
    assert not found.asks.any()
    ends = of._replace(clock=PhaseClock(CONTEST, 1.0))
    assert places(ends).asks.tolist() == [1] * N


@pytest.mark.parametrize(
    ("clock", "asks"),
    [
        (PhaseClock(), False),
        (PhaseClock(TRIAL), True),
        (PhaseClock(TRIAL, 1.0), False),
        (PhaseClock(TRIAL, 2.0), True),  # the last look of a trial
        (PhaseClock(CONTEST), False),
        (PhaseClock(CONTEST, 0.8), False),
        (PhaseClock(CONTEST, 1.0), True),
        (PhaseClock(PIECES), True),
        (PhaseClock(PIECES, 0.8), False),
        (PhaseClock(PIECES, 1.0), True),
    ],
)
def test_evidence_is_asked_for_where_it_may_decide(clock, asks):
    assert clock.asks is asks


# Directions.


def ones(who):
    return torch.ones(len(who), dtype=REAL)


def told(update, *, who=ALL, **fields):
    return with_directions(coordinator(**fields), who, update, ones(who))


def test_directions_are_sums_of_what_updates_differ_from_their_groups_mean():
    member, long = torch.tensor([0, 1, 0, 1, 1, 0]), PhaseClock(rest=9.0)
    state, wanted = coordinator(member, clock=long), torch.zeros(N, D, dtype=REAL)
    for seed, who in enumerate([ALL, torch.tensor([0, 2, 4]), ALL]):
        update = normal(len(who), D, seed=seed)
        rounds = 1 + who.to(REAL)  # those since a client was heard last
        state, _ = with_directions(state, who, update, rounds)
        update = rounds[:, None] * update
        for i, u in zip(who.tolist(), update, strict=True):
            here = [j for j, k in enumerate(who.tolist()) if member[k] == member[i]]
            weight = SHARES[who][here]
            wanted[i] += u - (weight[:, None] * update[here]).sum(0) / weight.sum()
        assert_close(state.sketch, wanted, **EXACT)
    assert state.clock == PhaseClock(rest=9.0, heard=2.5)


def test_updates_are_cut_at_three_times_the_median_length():
    """The median of those who moved at all; of an even number it is the lower one."""
    length = torch.tensor([1.0, 2.0, 0.0, 100.0, 3.0, 4.0], dtype=REAL)
    axis = torch.nn.functional.normalize(normal(N, D))
    update = length[:, None] * axis
    state, most = told(update)
    assert float(most) == pytest.approx(9.0)
    cut = length.clamp(max=9.0)[:, None] * axis
    mean = SHARES @ cut / SHARES.sum()
    assert_close(state.sketch, cut - mean, **EXACT)


def test_where_nobody_moves_no_length_is_too_large():
    state, most = told(torch.zeros(N, D, dtype=REAL))
    assert float(most) == torch.inf
    assert not state.sketch.any()


@pytest.mark.parametrize("garbage", [1e6, 1e200, torch.inf, torch.nan])
def test_garbage_of_one_does_not_hide_the_sides_of_others(garbage):
    update = torch.nn.functional.normalize(planted(ALL % 2))
    usual = told(update)[0].pick
    update[0] = garbage * torch.ones(D)
    state, most = told(update)
    assert float(most) == pytest.approx(3.0)  # the others have length 1
    assert state.sketch.isfinite().all()
    assert state.clock.phase == TRIAL
    found, others = state.pick[1:], usual[1:]
    assert torch.equal(found, others) or torch.equal(found, 1 - others)


def test_where_no_update_has_a_length_there_are_no_directions():
    update = torch.full((N, D), 1e200, dtype=REAL)
    update[:3] = torch.inf
    state, most = told(update)
    assert not state.sketch.any()
    assert (state.clock.phase, float(most)) == (REST, torch.inf)


def test_a_rest_ends_when_the_shares_of_those_heard_add_up_to_its_length():
    state, update = coordinator(), planted()
    for part, phase in [([0, 1], REST), ([2, 3], REST), ([4, 5], TRIAL)]:
        who = torch.tensor(part)
        state, _ = with_directions(state, who, update[who], ones(who))
        assert state.clock.phase == phase
    assert state.clock == PhaseClock(TRIAL)


def test_a_trial_begins_with_sides_and_without_evidence():
    old = Evidence(*torch.ones(2, N, 4, dtype=REAL))
    state, _ = told(planted(), evidence=old)
    assert state.pick.tolist() == SECOND.tolist()
    assert not torch.cat(state.evidence).any()


def test_without_sides_the_rest_goes_on_for_as_long_again():
    update = torch.ones(N, D, dtype=REAL)
    state, _ = told(update)
    assert state.clock == PhaseClock()
    assert not state.pick.any()


# Evidence.


def drawn(gains, samples=20, noise=0.1, seed=5):
    """Differences (N, 2, samples) of losses; gains are means, one or two a client."""
    draws = normal(N, 2, samples, seed=seed)
    draws = draws - draws.mean(2, keepdim=True)
    gains = torch.as_tensor(gains, dtype=REAL)
    gains = gains[:, None] if gains.dim() == 1 else gains
    return gains.expand(N, 2)[:, :, None] + noise * draws


def rows(d) -> torch.Tensor:
    """What clients tell of them."""
    return torch.cat([d.sum(2), (d - d.mean(2, keepdim=True)).square().sum(2)], 1)


def knowing(d, member=ZERO, samples=None):
    """A coordinator that was told."""
    held = torch.full((N,), float(d.shape[2])) if samples is None else samples
    total, around = rows(d).split(2, 1)
    return coordinator(member, evidence=Evidence(total, around), samples=held.to(REAL))


def by_loops(d, member):
    """Of each group, totals over their standard errors, one whole after the other."""
    found = [[], []]
    for group in range(int(member.max()) + 1):
        here = [d[i].numpy() for i in range(N) if member[i] == group]
        total = sum(one.sum(1) for one in here)
        error = sum(one.shape[1] * one.var(1, ddof=1) for one in here) ** 0.5
        for k in (0, 1):
            found[k].append(total[k] / error[k])
    return [torch.tensor(one, dtype=REAL) for one in found]


def test_how_much_better_halves_are_is_that_of_plain_loops():
    member = torch.tensor([0, 1, 0, 1, 1, 0])
    for seed in range(20):
        d = drawn(normal(N, 2, seed=seed), noise=1.0, seed=100 + seed)
        for found, wanted in zip(
            better_by(knowing(d, member)), by_loops(d, member), strict=True
        ):
            assert_close(found, wanted, **EXACT)


@pytest.mark.parametrize(
    ("plain", "tuned", "surely"),
    [
        (2.6, 0.1, True),
        (2.4, 3.0, False),  # not surely better than the whole
        (9.0, -0.1, False),  # the tuned whole is better: skewed labels
    ],
)
def test_when_halves_become_groups(plain, tuned, surely):
    """The rule of the documentation, with `sure` = 2.5."""
    found = BetterBy(*(torch.tensor([z], dtype=REAL) for z in (plain, tuned)))
    assert found.surely(2.5).tolist() == [surely]


def test_one_client_with_much_to_gain_is_seen_among_many_who_gain_nothing():
    gains = torch.zeros(N, dtype=REAL)
    gains[3] = 1.0
    z = float(better_by(knowing(drawn(gains))).plain)
    # Standard errors are of samples within clients: 20 / sqrt(6 * 20) / 0.1.
    assert z == pytest.approx(20 / 120**0.5 / 0.1, rel=0.25)
    # That of clients around each other would see next to nothing.
    assert float(gains.mean() / (gains.std() / N**0.5)) < 1.01


def test_one_sample_of_each_counts_by_its_own_square():
    d = drawn(normal(N, 2, seed=8), samples=1)
    some = d[:, 1, 0]
    wanted = some.sum() / some.square().sum().sqrt()
    assert_close(better_by(knowing(d)).tuned[0], wanted, **EXACT)


def test_without_evidence_nothing_is_better():
    member = torch.tensor([0, 1, 0, 1, 1, 0])
    assert torch.stack(better_by(coordinator(member))).tolist() == [[0, 0]] * 2
    nobody = coordinator(member, samples=torch.zeros(N, dtype=REAL))
    assert torch.stack(better_by(nobody)).tolist() == [[0, 0]] * 2


# Phases.


def judged(clock, gains, *, who=ALL, pick=SECOND, sure=2.5, member=ZERO):
    """After the evidence that halves gain so much on average, +- 0.1 / sqrt(120)."""
    state = coordinator(member, clock=clock)
    d = drawn(gains)[who]
    return with_evidence(state, who, pick[who], rows(d), sure=sure)


ERROR = 0.1 / 120**0.5  # of the mean over all samples
BEGUN = {"rest": 3.0, "trial": 4.5}  # lengths after one trial in vain


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("gain", [-1e-9, -0.1])
def test_a_trial_whose_halves_are_no_better_at_once_ends(gain, settled):
    """The next rest is three times as long, the next trial 1.5 times."""
    for old, new in [((1.0, 3.0), (3.0, 4.5)), ((3.0, 4.5), (9.0, 6.75))]:
        before = PhaseClock(TRIAL, 0.0, *old, settled=settled)
        state, moved = judged(before, gain)
        assert state.clock == PhaseClock(REST, 0.0, *new, settled=settled)
        assert not moved.any()
        assert torch.equal(state.member, ZERO)


def test_halves_that_are_the_same_as_the_whole_are_no_better():
    nothing = torch.zeros(N, 4, dtype=REAL)
    old = coordinator(clock=PhaseClock(TRIAL))
    assert with_evidence(old, ALL, SECOND, nothing, sure=2.5)[0].clock == PhaseClock(
        **BEGUN
    )


def test_better_halves_have_their_trial_and_then_a_contest():
    state = coordinator(clock=PhaseClock(TRIAL))
    for heard in (1.0, 2.0):
        state, moved = with_evidence(
            state, ALL, SECOND, rows(drawn(3 * ERROR)), sure=2.5
        )
        assert state.clock == PhaseClock(TRIAL, heard)
        assert not moved.any()
    hope = rows(drawn(1.5 * ERROR))
    state, moved = with_evidence(state, ALL, 1 - SECOND, hope, sure=2.5)
    assert state.clock == PhaseClock(CONTEST)
    assert torch.equal(state.pick, 1 - SECOND)
    assert not moved.any()


def test_halves_without_hope_after_their_trial_have_no_contest():
    """By less than one standard error, as they are."""
    state, moved = judged(PhaseClock(TRIAL, 2.0), 0.5 * ERROR)
    assert state.clock == PhaseClock(**BEGUN)
    assert not moved.any()


def test_in_the_course_of_a_trial_nobody_is_asked():
    state = coordinator(clock=PhaseClock(TRIAL, 1.0))
    state, moved = with_evidence(state, ALL, 1 - SECOND, None, sure=2.5)
    assert state.clock == PhaseClock(TRIAL, 2.0)
    assert torch.equal(state.pick, 1 - SECOND)
    assert not moved.any()


def test_a_trial_is_as_long_as_the_shares_of_clients_heard():
    state, told = coordinator(clock=PhaseClock(TRIAL)), rows(drawn(3 * ERROR))
    for number in range(1, 6):
        who = ALL[number % 2 :: 2]
        state, _ = with_evidence(state, who, SECOND[who], told[who], sure=2.5)
        assert state.clock == PhaseClock(TRIAL, number / 2)
    state, _ = with_evidence(state, ALL[::2], SECOND[::2], told[::2], sure=2.5)
    assert state.clock == PhaseClock(CONTEST)


@pytest.mark.parametrize(("errors", "at_once"), [(4.0, False), (6.5, True)])
def test_halves_that_are_better_by_twice_as_much_at_once_need_no_trial(errors, at_once):
    """Twice 2.5 standard errors, of means over noise of 0.1."""
    state, moved = judged(PhaseClock(TRIAL, **BEGUN), errors * ERROR)
    wanted = PhaseClock(CONTEST, **BEGUN)
    assert state.clock == (wanted if at_once else PhaseClock(TRIAL, 1.0, **BEGUN))
    assert not moved.any()


def test_halves_that_are_better_only_later_do_not_hurry():
    state, _ = judged(PhaseClock(TRIAL, 1.0), 1.0)
    assert state.clock == PhaseClock(TRIAL, 2.0)


def test_halves_that_pass_a_contest_are_groups():
    clock = PhaseClock(CONTEST, 1.0, **BEGUN)
    state, moved = judged(clock, 1.0)
    assert state.clock == PhaseClock(settled=True)  # lengths are as at first
    assert torch.equal(state.member, SECOND)
    assert moved.all()
    early, moved = judged(clock._replace(heard=0.0), 1.0)
    assert early.clock == clock
    assert not moved.any()


@pytest.mark.parametrize("taken", [0, 1])
def test_both_halves_must_be_taken_by_somebody(taken):
    state, moved = judged(PhaseClock(CONTEST, 1.0), 1.0, pick=torch.full((N,), taken))
    assert torch.equal(state.member, ZERO)
    assert not moved.any()
    assert state.clock == PhaseClock(**BEGUN)


def test_second_halves_get_names_of_their_own_and_others_keep_theirs():
    member, pick = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([1, 0, 0, 1, 0, 1])
    gains = [1.0, 1.0, -1.0, -1.0, 1.0, 1.0]
    state, moved = judged(PhaseClock(CONTEST, 1.0), gains, member=member, pick=pick)
    assert state.member.tolist() == [3, 0, 1, 1, 2, 4]
    assert moved.tolist() == [True, True, False, False, True, True]
    assert state.groups == 5
    together = places(coordinator(member)).together
    assert torch.equal(places(state).together < together, moved)


# Pieces.


def many(groups, each=4, columns=20, noise=0.3, seed=3):
    """Sketches of clients in as many directions, and the direction of each."""
    of = torch.arange(groups * each) % groups
    apart = normal(groups * each, columns, seed=seed) * noise / columns**0.5
    return torch.eye(columns, dtype=REAL)[of] - 1 / groups + apart, of


def cut(sketch, member=None):
    member = torch.zeros(len(sketch), dtype=torch.long) if member is None else member
    return pieces(sketch, member, sides(sketch, member))


def same_sets(a, b) -> bool:
    return torch.equal(a[:, None] == a, b[:, None] == b)


@pytest.mark.parametrize(("groups", "each"), [(3, 4), (4, 4), (6, 3), (10, 2)])
def test_planted_directions_are_pieces(groups, each):
    sketch, of = many(groups, each)
    assert same_sets(cut(sketch), of)


def test_relabelling_clients_relabels_their_pieces():
    sketch, _ = many(5)
    order = torch.randperm(len(sketch), generator=rng(1))
    assert same_sets(cut(sketch[order]), cut(sketch)[order])


@pytest.mark.parametrize("groups", [1, 2])
def test_one_or_two_directions_are_left_to_the_sides(groups):
    assert cut(many(groups, 16 // groups, noise=0.5)[0]) is None


def test_noise_has_no_clear_gap():
    """Of 50 draws, where the largest jump is where it happens to be."""
    assert sum(cut(normal(20, 256, seed=k)) is not None for k in range(50)) == 0


def test_few_clients_and_clients_without_a_direction_have_no_pieces():
    sketch, _ = many(3, 3)
    assert cut(sketch) is None
    sketch, _ = many(4)
    sketch[5] = 0
    assert cut(sketch) is None


def test_groups_without_a_gap_have_their_sides_beside_the_pieces_of_others():
    (first, of), (second, other) = many(4), many(2, 4, seed=7)
    member = torch.cat([torch.zeros(16), torch.ones(8)]).long()
    found = cut(torch.cat([first, second]), member)
    assert same_sets(found, torch.cat([of, 4 + other]))


def test_of_a_large_group_some_are_in_the_tree_and_all_are_in_pieces():
    sketch, of = many(3, 500)
    assert same_sets(cut(sketch), of)


def test_clear_pieces_are_tried_at_once_and_do_not_compete():
    sketch, of = many(4)
    n = len(of)
    state = one_group(torch.ones(n, dtype=REAL), torch.full((n,), 20.0), 20)
    state, _ = with_directions(state, torch.arange(n), sketch, torch.ones(n).double())
    assert state.clock == PhaseClock(PIECES)
    assert same_sets(state.pair, of) and not state.pick.any()
    shallow = state._replace(clock=PhaseClock(deep=False))
    shallow, _ = with_directions(
        shallow, torch.arange(n), sketch, torch.ones(n).double()
    )
    assert shallow.clock.phase == TRIAL and not shallow.pair.any()


def of_pieces(clock, errors):
    """Six clients in three pieces, after evidence by as many standard errors."""
    state = coordinator(clock=clock)._replace(pair=ALL // 2)
    return with_evidence(state, ALL, ZERO, rows(drawn(errors * ERROR)), sure=2.5)


def test_pieces_that_are_surely_better_have_a_contest_and_become_groups():
    state, moved = of_pieces(PhaseClock(PIECES), 4.0)
    assert state.clock == PhaseClock(PIECES, 1.0) and not moved.any()
    state, moved = of_pieces(PhaseClock(PIECES, 2.0), 4.0)
    assert state.member.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(state.pair, state.member) and moved.all()
    assert state.clock == PhaseClock(settled=True)


@pytest.mark.parametrize("heard", [0.0, 2.0])
def test_after_pieces_in_vain_two_halves_are_tried_next(heard):
    """After one look, and with lengths as before."""
    clock = PhaseClock(PIECES, heard, **BEGUN)
    state, moved = of_pieces(clock, 2.0)
    assert state.clock == PhaseClock(REST, 2.0, **BEGUN, deep=False)
    assert torch.equal(state.pair, ZERO) and not moved.any()


def test_once_groups_have_divided_sure_pieces_divide_at_once():
    state, moved = of_pieces(PhaseClock(PIECES, settled=True), 4.0)
    assert state.groups == 3 and moved.all()


def test_once_a_division_has_passed_a_contest_sure_halves_divide_at_once():
    """By 2.5 standard errors, and not by twice as many."""
    state, moved = judged(PhaseClock(TRIAL, settled=True, **BEGUN), 4 * ERROR)
    assert torch.equal(state.member, SECOND)
    assert moved.all()
    assert state.clock == PhaseClock(settled=True)
    # Others, which are better but not surely, have trial and contest.
    state, moved = judged(PhaseClock(TRIAL, settled=True, **BEGUN), 1.5 * ERROR)
    assert state.clock == PhaseClock(TRIAL, 1.0, settled=True, **BEGUN)
    assert not moved.any()


@pytest.mark.parametrize("errors", [1.8, 0.5, -3.0])
def test_after_a_contest_in_vain_the_next_rest_and_trial_are_longer(errors):
    state, moved = judged(PhaseClock(CONTEST, 1.0), errors * ERROR)
    assert state.clock == PhaseClock(**BEGUN)
    assert torch.equal(state.member, ZERO)
    assert not moved.any()


def test_who_is_away_counts_as_it_was_heard_last():
    first = judged(PhaseClock(CONTEST), -1.0)[0]
    who = torch.tensor([0, 1, 2])
    told = rows(drawn(0.5))[who]
    state, _ = with_evidence(first, who, SECOND[who], told, sure=2.5)
    assert_close(state.evidence.total[who], told[:, :2])
    assert torch.equal(state.evidence.total[3:], first.evidence.total[3:])
    assert state.clock == PhaseClock(CONTEST, 1.5)


def test_a_coordinator_keeps_the_precision_of_models():
    single = one_group(SHARES.float(), torch.full((N,), 20.0), D)
    state, _ = with_directions(single, ALL, planted().float(), ones(ALL).float())
    state, _ = with_evidence(state, ALL, SECOND, rows(drawn(3 * ERROR)), sure=2.5)
    for part in (state.shares, state.samples, state.sketch, *state.evidence):
        assert part.dtype == torch.float32
    there = judged(PhaseClock(TRIAL), 3 * ERROR)[0]
    pairs = zip(better_by(state), better_by(there), strict=True)
    for found, wanted in pairs:
        assert_close(found, wanted, rtol=1e-4, atol=0)
