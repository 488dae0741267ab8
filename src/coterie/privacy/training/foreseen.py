"""What a method will send, seen in advance on clients without data.

The method is run through all its rounds twice, in two worlds: clients have other data
in the second, but every verb between them answers as in the first. What a client then
gives to a verb, and is the same in both, was made of what is known already: it tells
nothing new, and may leave as it is. What differs depends on data, and is released with
noise where it is a row of the length of a model, around what is nearest to such rows,

    zero, the last row that was released there, or the last result of that call,

which is also found here, and not from data. Anything else that depends on data (counts,
weights that others see) cannot be bounded by clipping, and is refused.

Losses can. A method that would be refused is seen again with clients who release every
loss that they are asked for: then losses, too, are the same in both worlds. What it
does next may depend on them, and so it is run in several scenarios of losses, and calls
are known by what they are and not by their order in a round.

That two worlds differ is a proof that data matter; that they agree is none that they
never do. Methods whose calls depend on data in a way that random worlds do not show are
beyond it, and the order of calls is held during training.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.personal import PersonalOracle
from ...clients.traffic import Sending
from ...types import Algorithm, Oracle, State
from .doubles import Double, Seen
from .nearest import RESULT, Key, Nearest, is_model, keys_of
from .scenarios import SCENARIOS, explored

_COLUMNS = 61
"""Of the double of a model: more than the few numbers that methods send."""

_HOME = 7
"""Of these, those that stay at home, where there are personal parameters."""

_SCALE = 100.0
"""Entries of its models, which are far from zero beside a step."""

_WORLDS = "first", "second"


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
    told: dict[Key, Call] | None = None
    """Where losses are released, the calls of every round, of which the first list then
    has none but those of the beginning."""

    def calls(self, t: int) -> list[Call] | None:
        """The calls of round t in their order, or None where they are in `told`."""
        return self.rounds[t] if t == 0 or self.told is None else None

    @property
    def sums(self) -> bool:
        """Whether rows that tell something new are ever averaged."""
        every = [*self.rounds, (self.told or {}).values()]
        calls = (call for some in every for call in some)
        return any(call.verb == "average" and any(call.fresh) for call in calls)


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
        self,
        t: int,
        active: Tensor,
        scenario: int | None,
        answers: list[Seen] | None = None,
    ) -> list[Seen]:
        """What is seen in round t, which begins with 0."""
        purpose = "step" if t else "init"
        told = None if scenario is None else ("privacy", "losses", scenario, t)
        double = Double(active, ("privacy", self._name, purpose, t), answers, told)
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
    few = small_stage(len(actives[0]), personal)
    ask = functools.partial(_foreseen_on, algorithm, actives, seed, label)
    try:
        return ask(few)
    except Refusal:
        raise
    except Exception:  # of any kind, of models that are shorter than its own
        if columns is None:
            raise
        return ask(few._replace(columns=columns))


def _foreseen_on(
    algorithm: Algorithm,
    actives: Sequence[Bool[Tensor, " n"]],
    seed: int,
    label: str,
    stage: Stage,
) -> Foreseen:
    """What is sent if losses stay with their clients, or else if they are released."""
    try:
        return _foreseen(algorithm, actives, seed, label, stage, [None])
    except Refusal:
        rounds, scenarios = explored(actives), range(SCENARIOS)
        return _foreseen(algorithm, rounds, seed, label, stage, scenarios)


def _foreseen(
    algorithm: Algorithm,
    actives: Sequence[Bool[Tensor, " n"]],
    seed: int,
    label: str,
    stage: Stage,
    scenarios: Sequence[int | None],
) -> Foreseen:
    n, everybody = len(actives[0]), torch.ones_like(actives[0])
    columns, found = stage.known.shape[1], list[_Calls]()
    near, readers = Nearest(stage.known), torch.zeros(n, n, dtype=torch.bool)
    for scenario in scenarios:
        one, two = (_World(algorithm, stage, seed, name) for name in _WORLDS)
        near.begin()
        for t, active in enumerate([everybody, *actives]):
            seen = one.goes_on(t, active, scenario)
            again = two.goes_on(t, active, scenario, seen)
            calls = _calls(seen, _fresh(seen, again, columns, label), columns)
            if t:
                near.look(seen)
                found.append(calls)
            else:
                beginning = calls
            for call in seen:
                if call.verb in ("blended", "compare"):
                    readers |= call.others[0].to_dense() != 0
    seen = one.used(everybody)
    fresh = _fresh(seen, two.used(everybody, seen), columns, label)
    use = _calls(seen, fresh, columns)
    if any(_tells(call) for call in use):
        raise Refusal(
            f"{label} cannot be trained privately: whenever its models are used, "
            "clients send each other rows that depend on their data."
        )
    chosen = near.chosen()
    slots = {key: place for place, key in enumerate(chosen)}
    # Before the first round nobody has looked at data.
    every = [beginning, *_ever(found)]
    rounds = [[_placed(key, call, slots) for key, call in calls] for calls in every]
    kinds, by_losses = list(chosen.values()), scenarios[0] is not None
    made = Foreseen(
        rounds,
        [call for _, call in use],
        kinds,
        readers.fill_diagonal_(False),
        not by_losses and _is_gossip(rounds, kinds),
        stage,
    )
    if not by_losses:
        return made
    pairs = [pair for calls in every[1:] for pair in calls]
    told = {key: _placed(key, call, slots) for key, call in pairs}
    return made._replace(rounds=rounds[:1], told=told)


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
            if is_fresh and not is_model(row, columns):
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


def _calls(
    seen: list[Seen], fresh: list[tuple[tuple[bool, ...], bool]], columns: int
) -> _Calls:
    calls, keys = [], keys_of(seen, columns)
    for key, one, (rows, secret) in zip(keys, seen, fresh, strict=True):
        shares = one.others[0] if one.verb == "average" else None
        calls.append((key, Call(one.verb, rows, (-1,) * len(rows), secret, shares)))
    return calls


_Calls = list[tuple[Key, Call]]


def _ever(found: list[_Calls]) -> list[_Calls]:
    """The calls, of which all counts as new that is in any round.

    In one round, two worlds may agree by chance, as where a client chooses.
    """
    new: dict[Key, tuple[bool, ...]] = {}
    secret: dict[Key, bool] = {}
    for key, call in (pair for calls in found for pair in calls):
        before = new.get(key, call.fresh)
        new[key] = tuple(a or b for a, b in zip(before, call.fresh, strict=True))
        secret[key] = secret.get(key, False) or call.secret
    return [
        [(k, call._replace(fresh=new[k], secret=secret[k])) for k, call in calls]
        for calls in found
    ]


def _placed(key: Key, call: Call, slots: dict[tuple[Key, int], int]) -> Call:
    places = (slots.get((key, j), -1) for j in range(len(call.fresh)))
    return call._replace(slots=tuple(places))


def _tells(found: tuple[Key, Call]) -> bool:
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
