"""What a method will send, seen in advance on clients without data.

The method is run through all its rounds twice, in two worlds: clients have other data
in the second, but every verb between them answers as in the first. What a client then
gives to a verb, and is the same in both, was made of what is known already: it tells
nothing new, and may leave as it is. What differs depends on data, and is released with
noise where it is a row of the length of a model, around what is nearest to such rows,

    zero, the last row that was released there, or the last result of that call,

which is also found here, and not from data. Anything else that depends on data (losses,
counts, weights that others see) cannot be bounded by clipping, and is refused.

That two worlds differ is a proof that data matter; that they agree is none that they
never do. Methods whose calls depend on data in a way that random worlds do not show are
beyond it, and the order of calls is held during training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.personal import PersonalOracle
from ...clients.traffic import Sending
from ...types import Algorithm, Comparison, Oracle, State
from .doubles import Double, Seen

_COLUMNS = 61
"""Of the double of a model: more than the few numbers that methods send."""

_HOME = 7
"""Of these, those that stay at home, where there are personal parameters."""

_SCALE = 100.0
"""Entries of its models, which are far from zero beside a step."""

ZERO, OWN, RESULT = range(3)


class Refusal(InputError):
    """A method sends what cannot be made private."""


class Call(NamedTuple):
    """A call of a verb between clients, as it will come."""

    verb: str
    fresh: tuple[bool, ...]  # which of its rows tell something new
    slots: tuple[int, ...]  # where what each is near to is kept; -1: it is near zero
    secret: bool = False  # whether weights are known to their readers alone
    shares: Tensor | None = None  # (N,) of an average


class Stage(NamedTuple):
    """Where a method is run without data."""

    clients: int
    personal: bool  # whether some columns never leave their clients
    columns: int  # of the double of a model

    @property
    def home(self) -> Tensor | None:
        """Which of them stay at home."""
        return torch.arange(self.columns) < _HOME if self.personal else None

    @property
    def start(self) -> Tensor:
        """The first models: one for all, known to everybody."""
        rng = seeds.generator("privacy", "double")
        row = torch.randn(self.columns, generator=rng, dtype=torch.float64)
        return (_SCALE * row).repeat(self.clients, 1)

    @property
    def known(self) -> Tensor:
        """Their columns that may leave."""
        return self.start if self.home is None else self.start[:, ~self.home]

    def asked(self, double: Sending) -> Oracle:
        """The double, or what is made of it, as a method asks it."""
        return double if self.home is None else PersonalOracle(double, self.home)


class Foreseen(NamedTuple):
    """All calls of a method: at its beginning, in each round, and before use."""

    rounds: list[list[Call]]  # the first is the beginning
    use: list[Call]
    slots: list[int]  # OWN or RESULT, what each place keeps
    readers: Bool[Tensor, "n n"]  # [i, k]: whether i's model ever goes to k
    gossip: bool  # all that is new in a round is one row, mixed with neighbours'
    stage: Stage  # where this was seen


def small_stage(clients: int, personal: bool) -> Stage:
    """Of few columns, and not as many as there are clients, which tables have."""
    return Stage(clients, personal, _COLUMNS + 2 * (clients == _COLUMNS))


class _World:
    """A method on clients without data, round after round."""

    def __init__(self, algorithm: Algorithm, stage: Stage, seed: int, name: str):
        self._algorithm, self._stage, self._seed, self._name = (
            algorithm,
            stage,
            seed,
            name,
        )
        self._state: State = None

    def goes_on(
        self, t: int, active: Tensor, answers: list[Seen] | None = None
    ) -> list[Seen]:
        """What is seen in round t, which begins with 0."""
        purpose = "step" if t else "init"
        double = Double(active, ("privacy", self._name, purpose, t), answers)
        oracle = self._stage.asked(double)
        if t == 0:
            self._state = self._algorithm.init(self._stage.start, oracle)
        else:
            rng = seeds.generator(self._seed, "algorithm", t)
            self._state, _ = self._algorithm.step(self._state, oracle, rng)
        return double.seen

    def used(self, active: Tensor, answers: list[Seen] | None = None) -> list[Seen]:
        """What is seen before models are used."""
        double = Double(active, ("privacy", self._name, "use"), answers)
        self._algorithm.personal(self._state, self._stage.asked(double))
        return double.seen


def foresee(
    algorithm: Algorithm,
    actives: Sequence[Bool[Tensor, " n"]],
    *,
    seed: int,
    label: str,
    personal: bool = False,
    columns: int | None = None,
) -> Foreseen:
    """What an algorithm will send, round by round.

    Args:
        algorithm: with rounds.
        actives: who takes part in each round.
        seed: of the study, which names what the algorithm draws.
        label: how the algorithm is called, for refusals.
        personal: whether some columns never leave their clients.
        columns: of a model, where a method knows them and refuses others.

    Raises:
        InputError: where it sends what cannot be made private.
    """
    n = len(actives[0])
    few = small_stage(n, personal)
    try:
        return _foreseen(algorithm, actives, seed, label, few)
    except Refusal:
        raise
    except Exception:  # of any kind, of models that are shorter than its own
        if columns is None:
            raise
        return _foreseen(algorithm, actives, seed, label, few._replace(columns=columns))


def _foreseen(
    algorithm: Algorithm,
    actives: Sequence[Bool[Tensor, " n"]],
    seed: int,
    label: str,
    stage: Stage,
) -> Foreseen:
    n, everybody = len(actives[0]), torch.ones_like(actives[0])
    columns = stage.known.shape[1]
    one, two = (_World(algorithm, stage, seed, name) for name in ("first", "second"))
    near, found = _Nearest(stage), []
    readers = torch.zeros(n, n, dtype=torch.bool)
    for t, active in enumerate([everybody, *actives]):
        seen = one.goes_on(t, active)
        fresh = _fresh(seen, two.goes_on(t, active, seen), columns, label)
        found.append(_calls(seen, fresh))
        if t:
            near.look(seen)
        for call in seen:
            if call.verb in ("blended", "compare"):
                readers |= call.others[0].to_dense() != 0
    seen = one.used(everybody)
    fresh = _fresh(seen, two.used(everybody, seen), columns, label)
    use = _calls(seen, fresh)
    if any(_tells(call) for call in use):
        raise Refusal(
            f"{label} cannot be trained privately: whenever its models are used, "
            "clients send each other rows that depend on their data."
        )
    chosen = near.chosen()
    slots = {key: place for place, key in enumerate(chosen)}
    # Before the first round nobody has looked at data.
    told = [found[0], *_ever(found[1:])]
    rounds = [[_placed(key, call, slots) for key, call in calls] for calls in told]
    kinds = list(chosen.values())
    return Foreseen(
        rounds,
        [call for _, call in use],
        kinds,
        readers.fill_diagonal_(False),
        _is_gossip(rounds, kinds),
        stage,
    )


def _fresh(
    one: list[Seen], two: list[Seen], columns: int, label: str
) -> list[tuple[tuple[bool, ...], bool]]:
    """Of each call, which rows depend on data, and whether weights do."""
    if [seen.verb for seen in one] != [seen.verb for seen in two]:
        raise Refusal(
            f"{label} cannot be trained privately: what it asks clients to send "
            "depends on their data."
        )
    found = []
    for a, b in zip(one, two, strict=True):
        rows = tuple(not _same(x, y) for x, y in zip(a.rows, b.rows, strict=True))
        for row, is_fresh in zip(a.rows, rows, strict=True):
            if is_fresh and (row.dim() != 2 or row.shape[1] != columns):
                raise Refusal(
                    f"{label} cannot be trained privately: by `{a.verb}` clients send "
                    "numbers that depend on their data and are no models or gradients, "
                    "so that nothing bounds them."
                )
        weights = any(not _same(x, y) for x, y in zip(a.others, b.others, strict=True))
        if weights and a.verb != "mix":
            raise Refusal(
                f"{label} cannot be trained privately: the weights of its "
                f"`{a.verb}`, which others see, depend on data."
            )
        found.append((rows, weights))
    return found


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    return torch.equal(one.to_dense(), two.to_dense())


def _keys(seen: list[Seen]) -> list[tuple[str, int]]:
    """Verbs of a round, each numbered."""
    counts: dict[str, int] = {}
    keys = []
    for one in seen:
        counts[one.verb] = counts.get(one.verb, -1) + 1
        keys.append((one.verb, counts[one.verb]))
    return keys


_Key = tuple[str, int, int]


class _Nearest:
    """To what the rows of each call are nearest, on average over rounds."""

    def __init__(self, stage: Stage) -> None:
        self._known = stage.known
        self._away: dict[_Key, list[float]] = {}
        self._last: dict[_Key, tuple[Tensor, Tensor]] = {}

    def look(self, seen: list[Seen]) -> None:
        """Adds a round."""
        for (verb, number), one in zip(_keys(seen), seen, strict=True):
            for j, row in enumerate(one.rows):
                if row.shape != self._known.shape:
                    continue
                key = verb, number, j
                own, result = self._last.get(key, (self._known, self._known))
                sums = self._away.setdefault(key, [0.0, 0.0, 0.0])
                for kind, ref in ((ZERO, 0.0), (OWN, own), (RESULT, result)):
                    sums[kind] += float((row - ref).norm(dim=1).mean())
                self._last[key] = row, _result(one, j, result)

    def chosen(self) -> dict[_Key, int]:
        """What to keep for each call whose rows are not nearest to zero."""
        # What came back counts first where both are as near: it is what others have.
        # Of a sum nobody else knows a client's own part.
        kinds = {
            key: min(
                (RESULT, ZERO) if key[0] == "average" else (RESULT, OWN, ZERO),
                key=sums.__getitem__,
            )
            for key, sums in self._away.items()
        }
        return {key: kind for key, kind in kinds.items() if kind != ZERO}


def _result(seen: Seen, j: int, before: Tensor) -> Tensor:
    """The result that goes with a row, where it is one of a model."""
    if isinstance(seen.answer, Comparison) or seen.verb == "blended":
        return before
    answers = seen.answer if isinstance(seen.answer, tuple) else (seen.answer,)
    answer = answers[j] if j < len(answers) else before
    return answer if answer.shape == before.shape else before


def _calls(seen: list[Seen], fresh: list[tuple[tuple[bool, ...], bool]]) -> _Calls:
    calls = []
    for key, one, (rows, secret) in zip(_keys(seen), seen, fresh, strict=True):
        shares = one.others[0] if one.verb == "average" else None
        calls.append((key, Call(one.verb, rows, (-1,) * len(rows), secret, shares)))
    return calls


_Calls = list[tuple[tuple[str, int], Call]]


def _ever(found: list[_Calls]) -> list[_Calls]:
    """The calls, of which all counts as new that is in any round.

    In one round, two worlds may agree by chance, as where a client chooses.
    """
    new: dict[tuple[str, int], tuple[bool, ...]] = {}
    secret: dict[tuple[str, int], bool] = {}
    for key, call in (pair for calls in found for pair in calls):
        before = new.get(key, call.fresh)
        new[key] = tuple(a or b for a, b in zip(before, call.fresh, strict=True))
        secret[key] = secret.get(key, False) or call.secret
    return [
        [(k, call._replace(fresh=new[k], secret=secret[k])) for k, call in calls]
        for calls in found
    ]


def _placed(key: tuple[str, int], call: Call, slots: dict[_Key, int]) -> Call:
    places = (slots.get((*key, j), -1) for j in range(len(call.fresh)))
    return call._replace(slots=tuple(places))


def _tells(found: tuple[tuple[str, int], Call]) -> bool:
    call = found[1]
    return any(call.fresh) or call.verb in ("blended", "compare")


def _is_gossip(rounds: list[list[Call]], kinds: list[int]) -> bool:
    """Whether all that is ever new are rows that go on from their last mixture."""
    found = False
    for calls in rounds:
        new = [c for c in calls if any(c.fresh) or c.verb in ("blended", "compare")]
        for call in new:
            here = call.verb == "mix" and not call.secret and call.slots[0] >= 0
            if len(new) > 1 or not here or kinds[call.slots[0]] != RESULT:
                return False
            found = True
    return found
