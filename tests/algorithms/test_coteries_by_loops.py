"""Coteries, against loops over clients in NumPy that share no code with it.

Groups, halves and what a coordinator knows are in dictionaries by name or client, and
every formula is that of the documentation, one client after the other.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch

from coterie import seeds
from coterie.algorithms.coteries import coteries, group_of, halves_of, in_use
from coterie.engine.rounds import participants
from support.calibrations import calibrated_mean
from support.linear_groups import REAL, linear_clients
from support.oracles import begun
from support.plain_clients import mine
from support.rounds import simulate

N, D = 6, 3
LR, MOMENTUM = 0.05, 0.5
TRAIN = [6, 9, 7, 12, 8, 10]
REST, TRIAL, CONTEST = "rest", "trial", "contest"


def mean(rows, weights):
    return sum(w * r for w, r in zip(weights, rows, strict=True)) / sum(weights)


class Loops:
    """The method, one client after the other."""

    def __init__(self, federation, start, steps, sure):
        self.steps, self.sure = steps, sure
        data = [
            [
                (federation.features[k].numpy(), federation.targets[k].numpy())
                for k in (mine(federation, i), mine(federation, i, "validation"))
            ]
            for i in range(N)
        ]
        self.train, self.held = zip(*data, strict=True)
        self.size = [len(y) for _, y in self.train]
        zeros = {i: np.zeros(D) for i in range(N)}
        self.own = dict(enumerate(start))
        self.group = {0: sum(start) / N}
        self.member = dict.fromkeys(range(N), 0)
        self.offset = dict(zeros)
        self.halves, self.pick = {}, dict.fromkeys(range(N), 0)
        self.speed = {kind: dict(zeros) for kind in ("own", "group", "half")}
        self.updates = {i: [] for i in range(N)}
        self.direction = dict(zeros)
        self.mine = {i: (np.zeros(4), 0.0) for i in range(N)}
        self.told = {i: (np.zeros(4), 0.0) for i in range(N)}
        self.usual = {}
        self.choice = dict.fromkeys(range(N), 1)
        self.evidence = {}
        self.phase, self.heard, self.lengths = REST, 0.0, {REST: 1, TRIAL: 3}
        self.settled = False
        self.every, self.number = None, 0
        self.seen = ""  # first letters of phases, and ! where groups divide

    # What a client computes.

    def losses(self, i, w, data=None):
        x, y = (data or self.held)[i]
        return (x @ w - y) ** 2

    def bounded(self, i, w, c):
        return c * (1 - np.exp(-self.losses(i, w) / c))

    def stepped(self, kind, i, w):
        x, y = self.train[i]
        for _ in range(self.steps):
            g = 2 * x.T @ (x @ w - y) / len(y)
            self.speed[kind][i] = MOMENTUM * self.speed[kind][i] + g
            w = w - LR * self.speed[kind][i]
        return w

    def models(self, i):
        w = self.group[self.member[i]]
        o = self.offset[i]
        return [self.own[i], w, w + o / 2, w + o]

    def half(self, i):
        return self.halves[self.member[i]][self.pick[i]]

    def in_use(self):
        return np.stack([self.models(i)[self.choice[i]] for i in range(N)])

    # A round.

    def round(self, who):
        if self.every is None:
            self.plan(who)
        looks = self.number % self.every == 0
        if self.number % (3 * self.every) == 2 * self.every:
            self.choose(who)
        if looks and self.phase != REST:
            self.compete(who)
        for i in who:
            self.own[i] = self.stepped("own", i, self.own[i])
        ends, half_ends = {}, {}
        for i in who:
            if self.phase != TRIAL:
                w = self.group[self.member[i]]
                ends[i] = self.stepped("group", i, w)
                self.updates[i].append(ends[i] - w)
            if self.phase != REST:
                half_ends[i] = self.stepped("half", i, self.half(i))
                if self.phase == TRIAL:
                    self.updates[i].append(half_ends[i] - self.half(i))
        phase, verdict = self.phase, None
        if looks:
            verdict = self.directions(who) if phase == REST else self.judge(who)
        self.average(phase, who, ends, half_ends)
        if isinstance(verdict, set):
            self.divide(verdict)
        if phase == REST and self.phase == TRIAL:
            self.begin_trial(who)
        self.seen += phase[0] + ("!" if verdict else "")
        self.number += 1

    def plan(self, who):
        means = sorted(self.losses(i, self.group[0]).mean() for i in who)
        self.level = means[(len(means) - 1) // 2]
        work = np.mean([self.steps * self.size[i] for i in who])
        self.every = ceil(np.mean([self.size[i] for i in who]) / (0.4 * work) - 1e-6)

    def choose(self, who):
        def one_more(old, new):
            before, looks = old[0], 0.25 * old[1] + 1
            return before + (new - before) / looks, looks

        for i in who:
            models = self.models(i)
            c = self.usual.setdefault(i, self.losses(i, models[1]).mean())
            found = [self.losses(i, w) for w in models]
            own = np.array([calibrated_mean(losses, c) for losses in found])
            self.mine[i] = one_more(self.mine[i], own)
            out = np.array([calibrated_mean(losses, self.level) for losses in found])
            self.told[i] = one_more(self.told[i], out)
        sizes = [self.size[i] for i in who]
        worse = mean([self.told[i][0] - self.told[i][0][1] for i in who], sizes)
        # A hundredth of the most that a sample counts for, for each step away.
        worse = worse + 0.01 * self.level / 2 * np.array([3, 0, 1, 2])
        for i in who:
            n = len(self.held[i][1])
            self.choice[i] = int((n * self.mine[i][0] + 30 * worse).argmin())

    def compete(self, who):
        """Clients take halves, and tell what these are worth where that may decide."""
        length = self.lengths[TRIAL] if self.phase == TRIAL else 2
        begins = self.phase == TRIAL and self.heard == 0
        asks = begins or self.heard >= length - 1 - 1e-9
        for i in who:
            if self.phase == TRIAL or i in self.free:
                both = self.halves[self.member[i]]
                fits = [self.losses(i, h, self.train).mean() for h in both]
                if (
                    int(fits[0] - fits[1] > 1e-14 * fits[0]) != self.pick[i]
                ):  # by rounding
                    self.pick[i] = 1 - self.pick[i]
            self.free.discard(i)
            if not asks:
                continue
            half, whole = self.half(i), self.group[self.member[i]]
            models = {"plain": whole, "tuned": whole + self.offset[i]}
            self.evidence[i] = {
                name: self.bounded(i, model, self.level)
                - self.bounded(i, half, self.level)
                for name, model in models.items()
            }
            for d in self.evidence[i].values():
                d[np.abs(d) < 1e-14 * self.level] = 0  # by rounding

    def directions(self, who):
        update = {i: sum(self.updates[i]) / len(self.updates[i]) for i in who}
        lengths = sorted(np.linalg.norm(u) for u in update.values())
        self.most = 3 * lengths[(len(lengths) - 1) // 2]
        for i in who:
            length = np.linalg.norm(update[i])
            if length > self.most:
                update[i] = update[i] * self.most / length
            update[i] = update[i] * len(self.updates[i])
            self.updates[i] = []
        for name in self.group:
            here = [i for i in who if self.member[i] == name]
            if here:
                middle = mean([update[i] for i in here], [self.size[i] for i in here])
            for i in here:
                self.direction[i] = self.direction[i] + update[i] - middle
        self.heard += len(who) / N
        if self.heard < self.lengths[REST] - 1e-9:
            return
        self.heard = 0.0
        self.pick = {i: 0 for i in range(N)}
        for name in self.group:
            self.pick |= self.sides([i for i in range(N) if self.member[i] == name])
        if any(self.pick.values()):
            self.phase, self.evidence = TRIAL, {}

    def sides(self, here):
        known = [i for i in here if self.direction[i].any()]
        if len(known) < 3:
            return {}
        unit = np.stack([self.direction[i] for i in known])
        unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
        apart = unit - unit.mean(0)
        way = np.linalg.svd(apart)[2][0]
        along = apart @ way
        sign = (along**3).sum() / np.linalg.norm(along) ** 3
        if abs(sign) < 1e-6:  # as of two: the first of the large entries decides
            sign = next(v for v in way if abs(v) > abs(way).max() / 2)
        along = along * sign
        return {i: int(a > 0) for i, a in zip(known, along, strict=True)}

    def better_by(self, name, whole):
        """The total over its standard error."""
        told = [
            self.evidence[i][whole] for i in self.evidence if self.member[i] == name
        ]
        spread = sum(len(d) * d.var(ddof=1) for d in told)
        return sum(d.sum() for d in told) / spread**0.5 if spread else 0.0

    def judge(self, who):
        """None, or the names of groups that divide, which may be an empty set."""
        begins = self.heard == 0
        self.heard += len(who) / N
        plain, tuned = (
            {c: self.better_by(c, whole) for c in self.group}
            for whole in ("plain", "tuned")
        )
        if self.phase == TRIAL and begins:
            if self.settled and any(z > self.sure for z in plain.values()):
                return self.verdict({c for c, z in plain.items() if z > self.sure})
            if all(z <= 0 for z in plain.values()):
                return self.verdict(set())
            if any(z > 2 * self.sure for z in plain.values()):
                self.phase, self.heard = CONTEST, 0.0
                return None
        if self.phase == TRIAL:
            if self.heard < self.lengths[TRIAL] - 1e-9:
                return None
            if any(z > 1 for z in plain.values()):
                self.phase, self.heard = CONTEST, 0.0
                return None
            return self.verdict(set())
        if self.heard < 2 - 1e-9:
            return None
        better = {c for c in self.group if plain[c] > self.sure and tuned[c] > 0}
        return self.verdict(better)

    def verdict(self, surely):
        taken = {
            c: {self.pick[i] for i in range(N) if self.member[i] == c}
            for c in self.group
        }
        divides = {c for c in surely if len(taken[c]) == 2}
        self.phase, self.heard = REST, 0.0
        if divides:
            self.lengths, self.settled = {REST: 1, TRIAL: 3}, True
        else:
            rest, trial = self.lengths.values()
            self.lengths = {REST: 3 * rest, TRIAL: 1.5 * trial}
        return divides

    def average(self, phase, who, ends, half_ends):
        def cut(end, start):
            length = np.linalg.norm(end - start)
            return start + min(1.0, self.most / length) * (end - start)

        def follow(offset, i, apart):
            known = np.linalg.norm(offset[i]) > 1e-3 * np.linalg.norm(apart)
            rate = 0.25 if known else 1.0
            offset[i] = (1 - rate) * offset[i] + rate * apart

        half_ends = {i: cut(end, self.half(i)) for i, end in half_ends.items()}
        ends = {i: cut(end, self.group[self.member[i]]) for i, end in ends.items()}
        for name, both in self.halves.items():
            members = [i for i in range(N) if self.member[i] == name]
            for j in (0, 1):
                here = [i for i in who if i in members and self.pick[i] == j]
                if here:
                    rows = [half_ends[i] for i in here]
                    both[j] = mean(rows, [self.size[i] for i in here])
            if phase == TRIAL:
                sizes = [self.size[i] for i in members]
                rows = [both[self.pick[i]] for i in members]
                self.group[name] = mean(rows, sizes)
        if phase == TRIAL:
            ends = half_ends
        else:
            for name in self.group:
                here = [i for i in who if self.member[i] == name]
                if here:
                    sizes = [self.size[i] for i in here]
                    self.group[name] = mean([ends[i] for i in here], sizes)
        for i in who:
            follow(self.offset, i, ends[i] - self.group[self.member[i]])

    def divide(self, divides):
        fresh = len(self.group)
        for name in sorted(divides):
            for i in range(N):
                if self.member[i] != name:
                    continue
                self.offset[i] = np.zeros(D)
                self.speed["group"][i] = self.speed["half"][i]
                self.mine[i] = self.mine[i][0], min(self.mine[i][1], 1)
                self.told[i] = self.told[i][0], min(self.told[i][1], 1)
            self.group[name], self.group[fresh] = self.halves[name]
            self.member |= {
                i: fresh
                for i in range(N)
                if self.member[i] == name and self.pick[i] == 1
            }
            fresh += 1
        self.halves = {}

    def begin_trial(self, who):
        for name, w in self.group.items():
            both = []
            for j in (0, 1):
                here = [i for i in who if self.member[i] == name and self.pick[i] == j]
                rows = [self.offset[i] for i in here]
                sizes = [self.size[i] for i in here]
                both.append(w + mean(rows, sizes) if here else w)
            self.halves[name] = both
        self.free = set(range(N))
        self.speed["half"] = dict(self.speed["group"])


def clients(apart=1.0):
    """Two groups of three, on whose members noise is small and slightly different."""
    axis = torch.tensor([2.0, 1.0, -1.0], dtype=REAL)
    own = torch.tensor([0.0, 0.3, -0.2, 0.1, -0.3, 0.2], dtype=REAL)[:, None]
    side = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0], dtype=REAL)[:, None]
    theta = apart * side * axis + own * torch.tensor([0.0, 1.0, 1.0], dtype=REAL)
    return linear_clients(theta, train=TRAIN, validation=9, noise=0.4)


def compared(federation, *, steps, sure, share, rounds, seed=0):
    """Both, after every round; the loops at the end."""
    start = torch.randn(N, D, generator=torch.Generator().manual_seed(5), dtype=REAL)
    options = {"steps": steps, "sure": sure, "lr": LR, "momentum": MOMENTUM}
    algorithm = coteries(federation.train.size, **options)
    simulation = simulate(federation)
    loops = Loops(federation, list(start.numpy()), steps, sure)
    state = begun(algorithm, start)
    names = (REST, TRIAL, CONTEST)
    for t in range(1, rounds + 1):
        active = participants(N, share, seed, t)
        state, _ = algorithm.step(state, simulation.at(t, active), seeds.generator())
        loops.round(active.nonzero()[:, 0].tolist())
        assert names[state.server.clock.phase] == loops.phase, t
        assert state.place.member.tolist() == list(loops.member.values()), t
        assert state.choice.tolist() == list(loops.choice.values()), t
        assert state.pick.tolist() == list(loops.pick.values()), t
        rows = {
            "own": [loops.own[i] for i in range(N)],
            "group": [loops.group[loops.member[i]] for i in range(N)],
            "offset": [loops.offset[i] for i in range(N)],
        }
        offset = state.offset.masked_fill(state.lost[:, None], 0)
        known = {"own": state.own, "group": group_of(state), "offset": offset}
        if loops.halves:
            rows["halves"] = [loops.halves[loops.member[i]] for i in range(N)]
            known["halves"] = halves_of(state)
        for name, wanted in rows.items():
            found = known[name].numpy()
            np.testing.assert_allclose(found, np.array(wanted), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(in_use(state), loops.in_use(), rtol=0, atol=1e-9)
    assert bool(loops.halves) == (loops.phase != REST)
    return loops


@pytest.mark.parametrize(
    ("apart", "steps", "sure", "share", "path"),
    [
        # A contest without a trial; a trial in vain; a division without a contest.
        (1.0, 3, 2.5, 1.0, "rtcc!rtttrrrt!r"),
        (0.5, 3, 4.0, 1.0, "rtttcc!rtttccrrr"),
        (0.3, 3, 4.0, 1.0, "rtttccrrrtttttcc"),  # all stay together
        (1.0, 1, 6.0, 1.0, "r" + 9 * "t" + 6 * "c" + "!rrrt"),  # looks every third time
    ],
    ids=["at once", "divided", "together", "looks are rare"],
)
def test_rounds_are_those_of_plain_loops(apart, steps, sure, share, path):
    given = {"steps": steps, "sure": sure, "share": share}
    loops = compared(clients(apart), **given, rounds=len(path.replace("!", "")))
    assert loops.seen == path


@pytest.mark.parametrize(
    ("apart", "steps", "sure", "path"),
    [
        (1.0, 3, 2.5, "rrtccc!rrtttttccc!"),
        (0.3, 3, 3.0, "rrtttttccc!rrtttt"),
        (0.2, 1, 4.0, "rrrr" + 15 * "t" + 12 * "r"),  # no hope after the trial
    ],
)
def test_rounds_where_some_take_part_are_those_of_plain_loops(apart, steps, sure, path):
    given = {"steps": steps, "sure": sure, "share": 0.7}
    loops = compared(clients(apart), **given, rounds=len(path.replace("!", "")))
    assert loops.seen == path
