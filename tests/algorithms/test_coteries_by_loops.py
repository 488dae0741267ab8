"""Coteries, against loops over clients with models in dictionaries by name of group.

What a coordinator makes of reports is tested beside `coterie.collaboration.divisions`
and taken from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.coteries import coteries, in_use
from coterie.collaboration.divisions import halves, judged, one_group
from coterie.collaboration.evidence import Moments
from support.linear_groups import assert_same_standing
from support.oracles import begun
from support.plain_clients import mine
from support.quadratics import REAL, drawn, loss, simulate, start

N, D = 6, 26
LR, STEPS, MOMENTUM = 0.3, 2, 0.5
# Sums of some hundred products in another order, and what a dozen rounds make of it.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


@dataclass
class Models:
    """What there is after a round."""

    own: dict[int, torch.Tensor]
    group: dict[int, torch.Tensor]  # by name
    offset: dict[int, torch.Tensor]
    velocity: dict[tuple[str, int], torch.Tensor]
    everyone: torch.Tensor | None = None
    everyone_offset: dict[int, torch.Tensor] = field(default_factory=dict)
    ends: dict[int, torch.Tensor] = field(default_factory=dict)  # of local steps
    everyone_ends: dict[int, torch.Tensor] = field(default_factory=dict)
    two: dict[int, torch.Tensor] = field(default_factory=dict)  # to choose from
    cap: dict[int, float] = field(default_factory=dict)


class Loops:
    """The method, one client after the other."""

    def __init__(self, federation, x, sure):
        self.federation, self.simulation = federation, simulate(federation, 3)
        self.sizes, self.sure = federation.train.size.tolist(), sure
        w = sum(x) / N
        zero = {
            (kind, i): torch.zeros(D, dtype=REAL) for kind in "og" for i in range(N)
        }
        self.standing, self.t = one_group(x), 0
        nothing = dict.fromkeys(range(N), torch.zeros(D, dtype=REAL))
        self.now = Models(dict(enumerate(x)), {0: w}, nothing, zero)

    def losses(self, row, i):
        """Of each held-out sample of a client, in units of the first mean, below 1."""
        size = self.federation.features.shape[1]
        index = mine(self.federation, i, "validation")
        scores = self.federation.features[index] @ row[: 2 * size].view(2, size).T
        found = nn.functional.cross_entropy(
            scores + row[2 * size :], self.federation.targets[index], reduction="none"
        )
        c = self.now.cap.setdefault(i, float(found.mean()))
        return 1 - torch.exp(-found / c)

    def trained(self, row, kind, i, first):
        """After the local steps, whose first minibatch has that number."""
        for question in range(first, first + STEPS):
            x = row.clone().requires_grad_()
            index = drawn(self.simulation, self.t, i, question)
            (g,) = torch.autograd.grad(loss(self.federation, x, index), x)
            self.now.velocity[kind, i] = MOMENTUM * self.now.velocity[kind, i] + g
            row = row - LR * self.now.velocity[kind, i]
        return row

    def mean(self, rows, who):
        return sum(self.sizes[i] * rows[i] for i in who) / sum(
            self.sizes[i] for i in who
        )

    def round(self, active):
        """One more, in which these take part."""
        self.t += 1
        now, old = self.now, self.standing
        who = active.nonzero()[:, 0].tolist()
        member = old.member.tolist()
        began = {i: now.group[member[i]] for i in range(N)}
        samples = torch.zeros(N, dtype=REAL)
        sums, squares = torch.zeros(N, 6, dtype=REAL), torch.zeros(N, 6, 6, dtype=REAL)
        pick = torch.zeros(N, dtype=torch.long)
        for i in who:
            raw = self.losses(began[i], i)
            found = [raw] * 6
            if i in now.two:
                fits = [
                    loss(self.federation, h, mine(self.federation, i))
                    for h in now.two[i]
                ]
                pick[i] = int(fits[1] < fits[0])
                found[5] = self.losses(now.two[i][pick[i]], i)
            found[0] = self.losses(now.own[i], i)
            found[4] = found[2] = self.losses(began[i] + now.offset[i], i)
            now.own[i] = self.trained(now.own[i], "o", i, 0)
            now.ends[i] = self.trained(began[i], "g", i, STEPS)
            if now.everyone is not None:
                found[3] = self.losses(now.everyone, i)
                found[4] = self.losses(now.everyone + now.everyone_offset[i], i)
                row = self.trained(now.everyone, "e", i, 2 * STEPS)
                now.everyone_ends[i] = row
            samples[i] = len(raw)
            for k in range(6):
                sums[i, k] = found[k].sum()
                for m in range(6):
                    squares[i, k, m] = (found[k] - found[m]).square().sum()
        report = Moments(samples, sums, squares)
        new, news = judged(old, active, pick, report, t=self.t - 1, sure=self.sure)
        self.average(old, new, news, who)
        self.standing = new._replace(trial=self.propose(new, news, who, began))
        return news

    def average(self, old, new, news, who):
        now, member = self.now, new.member.tolist()
        if bool(news.merged[0]):
            now.group = {0: self.mean(now.everyone_ends, who)}
            now.offset = now.everyone_offset
            self.follow(now.offset, now.everyone_ends, dict.fromkeys(who, now.group[0]))
            for i in range(N):
                now.velocity["g", i] = now.velocity["e", i]
        elif int(new.probation[0]) >= 0:
            if now.everyone is None:
                now.everyone_ends = now.ends
                now.everyone_offset = dict(now.offset)
                now.velocity |= {("e", i): now.velocity["g", i] for i in range(N)}
            now.everyone = self.mean(now.everyone_ends, who)
            seen_from = dict.fromkeys(who, now.everyone)
            self.follow(now.everyone_offset, now.everyone_ends, seen_from)
            now.everyone_ends = {}
        if int(new.probation[0]) < 0:
            now.everyone = None
        if not bool(news.merged[0]):  # else they go on with everybody's, and its buffer
            for i in news.moved.nonzero()[:, 0].tolist():
                now.velocity["g", i] = torch.zeros(D, dtype=REAL)
                now.offset[i] = torch.zeros(D, dtype=REAL)
            for name in {member[i] for i in who}:
                here = [i for i in who if member[i] == name]
                now.group[name] = self.mean(now.ends, here)
            steady = [i for i in who if int(old.sibling[i]) < 0]
            seen_from = {i: now.group[member[i]] for i in steady}
            self.follow(now.offset, now.ends, seen_from)

    def follow(self, offset, ends, seen_from):
        """A quarter of the way to where local steps ended; at first, all of it."""
        for i, model in seen_from.items():
            rate = 0.25 if offset[i].any() else 1.0
            offset[i] = (1 - rate) * offset[i] + rate * (ends[i] - model)

    def propose(self, new, news, who, began):
        now, member, sibling = self.now, new.member.tolist(), new.sibling.tolist()
        trial = torch.zeros(N, dtype=torch.bool)
        now.two = {}
        for name in set(member):
            here = [i for i in who if member[i] == name and bool(news.due[i])]
            if len(here) < 2:
                continue
            update = torch.stack([now.ends[i] - began[i] for i in here])
            shares = torch.tensor([self.sizes[i] for i in here], dtype=REAL)
            middle = shares @ update / shares.sum()
            both = halves(update, shares)
            for i in (i for i in range(N) if member[i] == name and sibling[i] < 0):
                now.two[i] = now.group[name] + both - middle
                trial[i] = True
        for i in range(N):
            if sibling[i] >= 0:
                now.two[i] = torch.stack([now.group[member[i]], now.group[sibling[i]]])
        return trial

    def in_use(self):
        now, member = self.now, self.standing.member.tolist()
        found = []
        for i, choice in enumerate(self.standing.choice.tolist()):
            group = now.group[member[i]]
            models = [now.own[i], group, group + now.offset[i]]
            if now.everyone is not None:
                models += [now.everyone, now.everyone + now.everyone_offset[i]]
            found.append(models[choice])
        return torch.stack(found)


@pytest.mark.parametrize(
    ("share", "seed", "guesses", "also"),
    [
        (1.0, 3, False, set()),
        (0.7, 3, False, {"undecided"}),
        (0.7, 2, True, {"merged"}),
    ],
    ids=["all", "some", "together again"],
)
def test_rounds_are_those_of_plain_loops(classification, share, seed, guesses, also):
    """With divisions, probation, mergers, and members that were away."""
    if guesses:  # labels without rhyme or reason, in which there are no groups
        order = torch.randperm(len(classification.targets), generator=seeds.generator())
        targets = classification.targets[order]
        classification = replace(classification, targets=targets)
    x, rng, sure = start(N, D), torch.Generator().manual_seed(seed), 0.05
    sizes = classification.train.size
    options = {"lr": LR, "steps": STEPS, "momentum": MOMENTUM, "sure": sure}
    algorithm, loops = coteries(sizes, **options), Loops(classification, x, sure)
    state, seen = begun(algorithm, x), set()
    for t in range(1, 13):
        active = torch.rand(N, generator=rng) < share
        active[t % N] = True
        oracle = loops.simulation.at(t, active)
        state, _ = algorithm.step(state, oracle, seeds.generator())
        news = loops.round(active)
        seen |= {name for name, flag in news._asdict().items() if bool(flag.any())}
        assert_same_standing(state.standing, loops.standing, **CLOSE)
        assert_close(state.own, torch.stack([loops.now.own[i] for i in range(N)]))
        group = [loops.now.group[c] for c in loops.standing.member.tolist()]
        assert_close(state.group, torch.stack(group), **CLOSE)
        assert_close(in_use(state), loops.in_use(), **CLOSE)
    assert {"moved", "due", "dividing"} | also <= seen
