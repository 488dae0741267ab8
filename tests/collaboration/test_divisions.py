"""Claims about groups that divide: proposals, verdicts, probation, names, records."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.collaboration.divisions import (
    ALL_RAW,
    ALL_TUNED,
    HALF,
    MODELS,
    OWN,
    RAW,
    TUNED,
    halves,
    judged,
    one_group,
    proposed,
)
from coterie.collaboration.evidence import moments
from support.draws import rng

REAL = torch.float64
EXACT = {"rtol": 1e-10, "atol": 1e-12}
N = 6
SHARES = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=REAL)
FIRST, SECOND = torch.arange(N) < 4, torch.arange(N) >= 4


def planted(side=SECOND, noise=0.1) -> torch.Tensor:
    """Updates along one axis or the other, of different lengths, with some noise."""
    axes = torch.eye(5, dtype=REAL)[:2]
    length = torch.tensor([1.0, 9.0, 2.0, 0.5, 3.0, 0.1], dtype=REAL)
    extra = noise * torch.randn(N, 5, generator=rng(), dtype=REAL)
    return length[:, None] * (axes[side.long()] + extra)


def mean(update, shares, who) -> torch.Tensor:
    return sum(shares[i] * update[i] for i in who) / sum(shares[i] for i in who)


def test_halves_are_the_means_of_two_planted_directions():
    update = planted()
    found = halves(update, SHARES)
    assert_close(found[0], mean(update, SHARES, range(4)), **EXACT)
    assert_close(found[1], mean(update, SHARES, [4, 5]), **EXACT)


@pytest.mark.parametrize("side", [SECOND, torch.arange(N) % 2 == 0], ids=str)
def test_halves_do_not_depend_on_the_order_of_clients(side):
    update = planted(side)
    there = halves(update, SHARES)
    for seed in range(5):
        order = torch.randperm(N, generator=rng(seed))
        found = halves(update[order], SHARES[order])
        assert_close(found, there, **EXACT)


def test_of_two_clients_each_is_a_half():
    for seed in range(8):
        update = torch.randn(2, 5, generator=rng(seed), dtype=REAL)
        found = halves(update, SHARES[:2])
        same = (found[:, None] == update).all(2)
        assert same.sum(0).tolist() == same.sum(1).tolist() == [1, 1]


def test_which_of_two_alike_halves_is_the_first_is_no_matter_of_rounding():
    """Who was away goes with the first, on every machine the same."""
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        update = torch.randn(2, 5, generator=rng, dtype=REAL)
        there = halves(update, SHARES[:2])
        rounded = 1 + 1e-12 * torch.randn(2, 5, generator=rng, dtype=REAL)
        for other in (update * rounded, update.flip(0)):
            assert_close(halves(other, SHARES[:2]), there, rtol=1e-10, atol=1e-10)


def test_two_sides_of_the_same_size_are_two_halves():
    axis = torch.tensor([0.6, 0.8], dtype=REAL)
    found = halves(torch.stack([axis, -axis, axis, -axis]), SHARES[:4])
    assert_close(found.abs(), axis.abs().expand(2, 2), **EXACT)
    assert_close(found[0], -found[1], **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_of_one_direction_give_no_halves(dtype):
    axis = torch.randn(1, 5, generator=rng(), dtype=dtype)
    length = torch.tensor([[1.0], [7.0], [0.3], [2.0], [1.1], [4.0]], dtype=dtype)
    assert halves(length * axis, SHARES.to(dtype)) is None
    assert halves(torch.zeros(N, 5, dtype=dtype), SHARES.to(dtype)) is None


def test_proposals_are_made_group_by_group_from_those_who_were_heard():
    update = torch.randn(N, 5, generator=rng(3), dtype=REAL)
    member = torch.tensor([3, 3, 0, 3, 0, 1])
    heard = torch.tensor([True, True, True, False, True, True])
    changes, trial = proposed(update, SHARES, heard, member)
    assert trial.tolist() == [True, True, True, True, True, False]  # who is alone: no
    for here, everyone in (([0, 1], [0, 1, 3]), ([2, 4], [2, 4])):
        middle = mean(update, SHARES, here)
        for i in everyone:  # of two, each is a half
            both = {tuple((middle + c).tolist()) for c in changes[i]}
            for k in here:
                assert min(math.dist(update[k].tolist(), b) for b in both) < 1e-12
    assert (changes[5] == 0).all()


def test_there_is_no_proposal_where_updates_are_equal():
    update = torch.ones(N, 5, dtype=REAL)
    everybody = torch.ones(N, dtype=torch.bool)
    changes, trial = proposed(update, SHARES, everybody, torch.zeros(N).long())
    assert not trial.any()
    assert (changes == 0).all()


def told(samples=20, n=N, noise=0.1, **losses):
    """Moments of held-out losses around these, by name; all others lose 1.

    Samples are as noisy for every model, and independently so.
    """
    names = {"own": OWN, "raw": RAW, "tuned": TUNED, "half": HALF}
    names |= {"all_raw": ALL_RAW, "all_tuned": ALL_TUNED}
    centre = torch.ones(n, MODELS, dtype=REAL)
    for name, value in losses.items():
        centre[:, names[name]] = torch.as_tensor(value, dtype=REAL)
    draws = torch.randn(n, MODELS, samples, generator=rng(5), dtype=REAL)
    draws = draws - draws.mean(2, keepdim=True)  # so that means are as said
    return moments(centre[:, :, None] + noise * draws)


def standing(n=N, **fields):
    """One group, whose halves are tried, and what else is said."""
    first = one_group(torch.zeros(n, 3, dtype=REAL))
    return first._replace(trial=torch.ones(n, dtype=torch.bool), **fields)


EVERYBODY = torch.ones(N, dtype=torch.bool)
PICK = SECOND.long()


def decide(old, report, *, active=EVERYBODY, pick=PICK, t=2, sure=2.5):
    return judged(old, active, pick, report, t=t, sure=sure)


def test_a_group_divides_where_its_halves_are_surely_better():
    new, news = decide(standing(), told(half=0.5))
    assert new.member.tolist() == [0, 0, 0, 0, 1, 1]
    assert news.moved.all()
    assert new.probation.tolist() == [2 + 3] * N
    assert not new.settled.any()
    assert not new.trial.any()
    assert (new.sibling == -1).all()
    assert not news.merged.any()
    assert not news.undecided.any()


@pytest.mark.parametrize("half", [1.0, 1.1])
def test_a_group_whose_halves_are_no_better_rests(half):
    """Four rounds: the next proposal is made after round 2 + 5, not before."""
    new, news = decide(standing(), told(half=half))
    assert new.member.tolist() == [0] * N
    assert new.rest.tolist() == [2 + 1 + 4] * N
    assert not news.moved.any()
    for t, due in [(3, False), (6, False), (7, True)]:
        later = decide(new, told(), t=t)[1]
        assert later.due.all() == later.dividing.all() == due
        assert later.due.any() == due


def test_better_halves_that_are_not_surely_so_are_tried_again():
    # A difference of .02 +- .1 sqrt(2 / 120): between one and two standard errors.
    new, news = decide(standing(), told(half=0.98))
    assert new.member.tolist() == [0] * N
    assert (new.rest == 0).all()
    assert news.due.all()
    # Who asks for less gets it.
    assert decide(standing(), told(half=0.98), sure=0.5)[1].moved.all()


@pytest.mark.parametrize("taken", [0, 1])
def test_both_halves_must_be_taken_by_somebody(taken):
    pick = torch.full((N,), taken)
    new, news = decide(standing(), told(half=0.5), pick=pick)
    assert new.member.tolist() == [0] * N
    assert not news.moved.any()
    assert (new.probation == -1).all()


def test_no_proposals_are_due_before_the_second_round_nor_for_one_client():
    assert not decide(standing(), told(), t=0)[1].due.any()
    member = torch.tensor([0, 0, 1, 1, 1, 2])
    old = standing(member=member)._replace(trial=torch.zeros(N, dtype=torch.bool))
    assert decide(old, told())[1].due.tolist() == [True] * 5 + [False]


def test_groups_are_judged_by_their_own_members_alone():
    member = torch.tensor([0, 0, 0, 2, 2, 2])
    pick = torch.tensor([0, 1, 0, 1, 0, 1])
    report = told(half=[0.5, 0.5, 0.5, 1.5, 1.5, 1.5])
    yes = torch.ones(N, dtype=torch.bool)
    new, news = decide(standing(member=member, settled=yes), report, pick=pick)
    assert new.member.tolist() == [0, 1, 0, 2, 2, 2]
    assert news.moved.tolist() == [True] * 3 + [False] * 3
    assert new.rest.tolist() == [0] * 3 + [7] * 3
    # Groups that passed their probation are on none again.
    assert (new.probation == -1).all()


def test_samples_of_those_who_took_no_part_do_not_count():
    active = torch.tensor([True, False, True, False, True, False])
    report = told(half=[0.5, 99.0, 0.5, 99.0, 0.5, 99.0])
    assert decide(standing(), report, active=active)[1].moved.all()
    report = told(half=[1.5, 0.0, 1.5, 0.0, 1.5, 0.0])
    assert not decide(standing(), report, active=active)[1].moved.any()


def test_who_was_away_gets_the_name_of_the_other_half_and_decides_on_return():
    active = torch.tensor([True, False, True, False, True, False])
    new, news = decide(standing(), told(half=0.5), active=active)
    assert new.member.tolist() == [0, 0, 0, 0, 1, 0]
    assert new.sibling.tolist() == [-1, 1, -1, 1, -1, 1]
    assert news.undecided.all()
    assert news.due.tolist() == [True, False, True, False, False, False]
    # Client 1 stays away, 3 returns to the first half and 5 to the second.
    active = torch.tensor([True, False, True, True, True, True])
    pick = torch.tensor([1, 1, 1, 0, 1, 1])  # nobody else has a say
    after, news = decide(new, told(half=0.5), active=active, pick=pick, t=3)
    assert after.member.tolist() == [0, 0, 0, 0, 1, 1]
    assert after.sibling.tolist() == [-1, 1, -1, -1, -1, -1]
    assert news.moved.tolist() == [False, False, False, True, False, True]
    assert news.undecided.all()
    back, news = decide(after, told(half=0.5), pick=pick, t=4)
    assert back.member.tolist() == [0, 1, 0, 0, 1, 1]
    assert not news.undecided.any()


def on_probation(**fields):
    """Two groups in the last round of their probation, round 5."""
    no = torch.zeros(N, dtype=torch.bool)
    return standing(
        member=SECOND.long(), probation=torch.full((N,), 5), **fields
    )._replace(trial=no)


def test_groups_that_are_surely_better_than_all_together_stay():
    report = told(raw=0.7, all_raw=0.9)
    early, _ = decide(on_probation(), report, t=4)
    assert early.probation.tolist() == [5] * N
    new, news = decide(on_probation(), report, t=5)
    assert new.member.tolist() == SECOND.long().tolist()
    assert new.settled.all()
    assert new.probation.tolist() == [-1] * N
    assert not news.merged.any()


@pytest.mark.parametrize("raw", [1.0, 0.88, 0.9])
def test_groups_that_are_not_are_one_again_for_a_pause_that_doubles(raw):
    """Of the two, the better use of the groups and the better use of all count."""
    report = told(raw=raw, tuned=0.95, all_raw=0.95, all_tuned=0.9)
    old = on_probation(sibling=torch.tensor([-1, 1, -1, -1, -1, -1]))
    active = torch.tensor([True, False, True, True, True, True])
    better = raw < 0.9
    if better:  # but not surely: probation goes on, for three rounds more at most
        for t in (5, 6, 7):
            assert not decide(old, report, active=active, t=t)[1].merged.any()
    t = 8 if better else 5
    new, news = decide(old, report, active=active, t=t)
    assert news.merged.all()
    assert new.member.tolist() == [0] * N
    assert new.sibling.tolist() == new.probation.tolist() == [-1] * N
    assert not new.settled.any()
    assert new.rest.tolist() == [t + 1 + 8] * N
    assert new.pause.tolist() == [16] * N
    # The next attempt that ends so waits twice as long, and so on.
    again = on_probation(pause=new.pause)
    after, _ = decide(again, report, t=t)
    assert after.rest.tolist() == [t + 1 + 16] * N
    assert after.pause.tolist() == [32] * N


def test_after_a_merger_the_groups_record_is_that_of_all_together():
    record = torch.arange(6.0, dtype=REAL).expand(N, 6)
    old = on_probation(record=record)
    report = told(raw=1.0, all_raw=0.5, all_tuned=0.6)
    new, _ = decide(old, report, t=5)
    assert_close(new.record[:, RAW], 0.8 * record[:, ALL_RAW] + 0.5)
    assert_close(new.record[:, TUNED], 0.8 * record[:, ALL_TUNED] + 0.6)


@pytest.mark.parametrize("raw", [0.2, 1.5])
def test_after_probation_nobody_uses_a_model_that_is_no_longer_there(raw):
    """Neither who was away in its last round, nor who has no held-out samples."""
    choice = torch.tensor([OWN, ALL_RAW, ALL_TUNED, ALL_RAW, RAW, TUNED])
    active = torch.tensor([True, False, False, True, True, True])
    new, _ = decide(on_probation(choice=choice), told(raw=raw), active=active, t=5)
    assert new.choice[1:3].tolist() == [RAW, TUNED]
    assert new.choice.max() <= TUNED


def test_records_are_discounted_sums_of_losses_and_their_weight():
    no = torch.zeros(N, dtype=torch.bool)
    old = standing()._replace(trial=no)
    active = torch.tensor([True, True, True, True, True, False])
    losses = {"own": 0.5, "raw": 0.7, "tuned": 0.6, "all_raw": 0.9, "all_tuned": 0.8}
    first, _ = decide(old, told(**losses), active=active)
    once = torch.tensor([0.5, 0.7, 0.6, 0.9, 0.8, 1.0], dtype=REAL)
    assert_close(first.record[:5], once.expand(5, 6), **EXACT)
    assert (first.record[5] == 0).all()
    second, _ = decide(first, told(**losses))
    assert_close(second.record[:5], (1.8 * once).expand(5, 6), **EXACT)
    assert_close(second.record[5], once, **EXACT)


def test_who_has_a_new_group_goes_on_with_its_record_and_its_half():
    old = standing(record=torch.full((N, 6), 9.0, dtype=REAL))
    active = torch.tensor([True, True, True, False, True, True])
    new, _ = decide(old, told(own=0.8, raw=0.9, half=0.4), active=active)
    # Nine rounds of loss 1 count as one: 0.8 + loss.
    wanted = torch.tensor([1.6, 1.2, 1.8, 1.8, 1.8, 1.8], dtype=REAL)
    assert_close(new.record[active], wanted.expand(5, 6), **EXACT)
    assert (new.record[3] == 1).all()  # nothing was heard of it


def test_a_division_does_not_bring_back_who_surely_does_better_alone():
    """Its losses of one round say little: those of before still count."""
    record = torch.tensor([0.5, 1.0, 0.9, 1.0, 0.9, 1.0], dtype=REAL) * 5
    old = standing(record=record.expand(N, 6))
    new, news = decide(old, told(own=0.5, raw=0.9, tuned=0.49, half=0.4))
    assert news.moved.all()
    assert new.choice.tolist() == [OWN] * N


def test_who_has_no_held_out_samples_keeps_what_it_had():
    report = told(own=0.1)
    samples = report.samples.clone()
    samples[2] = 0
    sums, squares = report.sums.clone(), report.squares.clone()
    sums[2], squares[2] = 0, 0
    report = report._replace(samples=samples, sums=sums, squares=squares)
    no = torch.zeros(N, dtype=torch.bool)
    new, _ = decide(standing()._replace(trial=no), report)
    assert new.choice.tolist() == [OWN, OWN, RAW, OWN, OWN, OWN]
    assert (new.record[2] == 0).all()


def test_choices_follow_records_more_than_the_last_round():
    record = torch.tensor([0.2, 1.0, 1.0, 1.0, 1.0, 1.0], dtype=REAL) * 4
    no = torch.zeros(N, dtype=torch.bool)
    old = standing(record=record.expand(N, 6))._replace(trial=no)
    new, _ = decide(old, told(own=1.05))
    assert new.choice.tolist() == [OWN] * N
    new, _ = decide(standing()._replace(trial=no), told(own=1.05, tuned=0.9))
    assert new.choice.tolist() == [TUNED] * N


def test_on_probation_all_together_may_be_used_where_it_is_better_on_the_whole():
    report = told(raw=0.9, all_raw=0.5, all_tuned=0.6)
    new, _ = decide(on_probation(), report, t=4)
    assert new.choice.tolist() == [ALL_RAW] * N
    new, _ = decide(on_probation(), told(raw=0.4, all_raw=0.5), t=4)
    assert new.choice.tolist() == [RAW] * N


def test_names_stay_below_the_number_of_clients_however_often_groups_divide():
    rng = torch.Generator().manual_seed(2)
    n = 9
    yes = torch.ones(n, dtype=torch.bool)
    old = standing(n, settled=yes)
    for t in range(300):
        active = torch.rand(n, generator=rng) < 0.6
        pick = (torch.rand(n, generator=rng) < 0.5).long()
        before = old.member
        new, news = decide(
            old, told(half=0.3, n=n), active=active, pick=pick, t=t + 1, sure=1.0
        )
        assert 0 <= int(new.member.min()) <= int(new.member.max()) < n
        waits = new.sibling >= 0
        # Who waits has another group to go to, in which there is somebody.
        assert torch.isin(new.sibling[waits], new.member).all()
        assert (new.sibling != new.member).all()
        # Nobody joins a group that had others before: halves have names of their own.
        for name in set(new.member.tolist()) - set(before.tolist()):
            assert len(before[new.member == name].unique()) == 1
        old = new._replace(trial=news.due)
        if len(new.member.unique()) == n:
            break
    assert sorted(old.member.tolist()) == list(range(n))
