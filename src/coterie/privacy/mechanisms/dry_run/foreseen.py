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
never do. So the method is also followed (`origins`) through all its rounds: what is
made of clients' answers counts as new even where it is the same, and so does what is
new in any round, also of those that would come after a short run.

So the dry run verifies what a method declares (`declarations`): who releases more is
refused. All this is a plan. Whether training keeps to it is held in every round
(`watching`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ....checks import InputError
from ....types import Algorithm, Releases, tensor_of
from .declarations import UndeclaredRelease, refuse_undeclared
from .doubles import SeenCall, Stage, World, small_stage
from .nearest import RESULT, Key, NearestRefs, is_model, keys_of
from .origins import has_read, track_marks
from .scenarios import SCENARIOS, scenario_rounds

_WORLDS = "first", "second"

_VERBS = "average", "central", "mix", "blended", "compare"
"""Verbs between clients, in the order of `Releases`."""

_BY_GRADIENTS = "blended", "compare"
"""Verbs in which clients answer each other with gradients."""


class Refusal(InputError):
    """A method sends what cannot be made private."""


class Call(NamedTuple):
    """A call of a verb between clients, as it will come."""

    verb: str
    fresh: tuple[bool, ...]  # which of its rows tell something new
    slots: tuple[int, ...]  # where what each is near to is kept; -1: it is near zero
    secret: bool = False  # whether weights are known to their readers alone
    shares: Tensor | None = None  # (N,) of an average


class CallPlan(NamedTuple):
    """All calls of a method: at its beginning, in each round, and before use."""

    rounds: list[list[Call]]  # the first is the beginning
    use: list[Call]
    slots: list[int]  # OWN or RESULT, what each place keeps
    readers: Bool[Tensor, "n n"]  # [i, k]: whether i's model ever goes to k
    gossip: bool  # all that is new in a round is one row, mixed with neighbours'
    stage: Stage  # where this was seen
    by_key: dict[Key, Call] | None = None
    """Where losses are released, the calls of every round, of which the first list then
    has none but those of the beginning."""

    def calls(self, t: int) -> list[Call] | None:
        """The calls of round t in their order, or None where they are in `by_key`."""
        return self.rounds[t] if t == 0 or self.by_key is None else None

    @property
    def releases(self) -> Releases:
        """What a client releases in a round at most, as a method declares it."""
        most: Counter[str] = Counter()
        for calls in (*self.rounds, (self.by_key or {}).values()):
            rows: Counter[str] = Counter()
            for call in calls:
                rows[call.verb] += sum(call.fresh) + (call.verb in _BY_GRADIENTS)
            most |= rows
        losses, unbounded = self.by_key is not None, False
        return Releases._make([*(most[verb] for verb in _VERBS), losses, unbounded])

    @property
    def verbs(self) -> frozenset[str]:
        """By which rows leave that tell something new."""
        return frozenset(v for v in _VERBS if getattr(self.releases, v))

    @property
    def sums(self) -> bool:
        """Whether rows that tell something new are ever averaged."""
        return self.releases.average > 0


def plan_calls(
    algorithm: Algorithm,
    actives: Sequence[Bool[Tensor, " n"]],
    *,
    seed: int,
    label: str,
    personal: bool = False,
    columns: int | None = None,
) -> CallPlan:
    """What an algorithm will send, round by round.

    Args:
        algorithm: with rounds.
        actives: who takes part in each round.
        seed: of the study, which names what the algorithm draws.
        label: how the algorithm is called, for refusals.
        personal: whether some columns never leave their clients.
        columns: of a model, where a method knows them and refuses others.

    Raises:
        Refusal: where it sends what cannot be made private.
        UndeclaredRelease: where it releases more than it declares.
    """
    few = small_stage(len(actives[0]), personal)
    if (home := algorithm.home) is not None:
        few = few._replace(columns=len(home), kept=home.cpu())
    played = _DryRun(algorithm, actives, seed, label, few)
    try:
        found = _foreseen_of(played)
    except Refusal:
        raise
    except Exception:  # of any kind, of models that are shorter than its own
        if columns is None:
            raise
        found = _foreseen_of(played._replace(stage=few._replace(columns=columns)))
    refuse_undeclared(algorithm, found.releases, label)
    return found


def verify_releases(
    algorithm: Algorithm,
    actives: Sequence[Bool[Tensor, " n"]],
    *,
    seed: int,
    label: str,
    personal: bool = False,
    columns: int | None = None,
) -> None:
    """Refuses a method that releases more than it declares; see `plan_calls`.

    For those who do not need what is foreseen, as who hides single samples: there it
    also holds for what nothing bounds. A method that does not run on short models
    without data cannot be verified, and goes on.
    """
    if algorithm.releases is None:
        return
    given = algorithm, scenario_rounds(actives)
    try:
        plan_calls(*given, seed=seed, label=label, personal=personal, columns=columns)
    except UndeclaredRelease:
        raise
    except Refusal:
        refuse_undeclared(algorithm, Releases(unbounded=True), label)
    except Exception:  # of any kind, as the method is run on what it was not made for
        return


class _DryRun(NamedTuple):
    """A method that is run without data, and where."""

    algorithm: Algorithm
    actives: Sequence[Bool[Tensor, " n"]]
    seed: int
    label: str
    stage: Stage
    scenarios: Sequence[int | None] = (None,)  # of losses, where they are released


def _foreseen_of(played: _DryRun) -> CallPlan:
    """What is sent if losses stay with their clients, or else if they are released."""
    try:
        return _foreseen(played)
    except Refusal:
        rounds, scenarios = scenario_rounds(played.actives), range(SCENARIOS)
        return _foreseen(played._replace(actives=rounds, scenarios=scenarios))


def _foreseen(played: _DryRun) -> CallPlan:
    _, actives, _, label, stage, scenarios = played
    n, by_losses = len(actives[0]), scenarios[0] is not None
    near, readers = NearestRefs(stage.shared_start), torch.zeros(n, n, dtype=torch.bool)
    differs = _compare(played, near, readers)
    marked = _trace(played, {key for calls in differs.rounds for key, _ in calls})
    use, _ = _ever([differs.use, marked.use])
    beginning, _ = _ever([differs.beginning, marked.beginning])
    if any(_tells(call) for call in use):
        raise Refusal(
            f"{label} cannot be trained privately: whenever its models are used, "
            "clients send each other rows that depend on their data."
        )
    _refuse_blends_with_others(differs, label)
    calls = [pair for some in (*differs.rounds, *marked.rounds) for pair in some]
    chosen = near.choose({key for key, call in calls if call.secret})
    slots = {key: place for place, key in enumerate(chosen)}
    many = len(differs.rounds) if by_losses else len(actives)
    # Before the first round nobody has looked at data.
    every = [beginning, *_ever([*differs.rounds[:many], *marked.rounds[:many]])[:many]]
    rounds = [[_with_slots(key, call, slots) for key, call in calls] for calls in every]
    kinds = list(chosen.values())
    made = CallPlan(
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
    by_key = {key: _with_slots(key, call, slots) for key, call in pairs}
    return made._replace(rounds=rounds[:1], by_key=by_key)


def _refuse_blends_with_others(seen: _Sighting, label: str) -> None:
    """Refuses other verbs besides `blended`, of whose answers one part is not released.

    A client that nobody asks keeps its own gradient in it as it is.
    """
    verbs = {call.verb for some in (seen.beginning, *seen.rounds) for _, call in some}
    if "blended" in verbs and (others := verbs - {"blended", "compare"}):
        raise Refusal(
            f"{label} cannot be trained privately: it uses `blended`, of whose answers "
            f"not all is released, and sends rows by `{min(others)}` too."
        )


class _Sighting(NamedTuple):
    """The calls of a method, and what in them depends on data."""

    use: _Calls
    beginning: _Calls
    rounds: list[_Calls]  # of all scenarios


def _trace(played: _DryRun, wanted: set[Key]) -> _Sighting:
    """What is made of clients' answers, until all calls that are wanted have come."""
    algorithm, actives, seed, label, stage, scenarios = played
    # Marks are of whole rows, and what stays at home changes none of the calls.
    stage, everybody = stage._replace(personal=False), torch.ones_like(actives[0])
    rounds = max(actives, scenario_rounds(actives), key=len)

    def calls_of(seen: list[SeenCall]) -> _Calls:
        if any(one.read for one in seen):
            raise Refusal(f"{label} {has_read()}")
        fresh = [(one.made, one.weighed) for one in seen]
        return _calls(seen, fresh, stage.shared_start.shape[1], label)

    found = list[_Calls]()
    for scenario in scenarios:
        if found and wanted <= {key for calls in found for key, _ in calls}:
            break
        world, read = World(algorithm, stage, seed, _WORLDS[0]), False
        for t, active in enumerate([everybody, *rounds]):
            with track_marks(read) as following:
                seen = world.run_round(t, active, scenario, following=following)
            read = following.read  # what was read in one round is known in the next
            if t:
                found.append(calls_of(seen))
            else:
                beginning = calls_of(seen)
    with track_marks(read) as following:
        seen = world.calls_before_use(everybody, following=following)
    return _Sighting(calls_of(seen), beginning, found)


def _compare(
    played: _DryRun, near: NearestRefs, readers: Bool[Tensor, "n n"]
) -> _Sighting:
    """What differs in two worlds; adds what is `near`, and `readers`."""
    algorithm, actives, seed, label, stage, scenarios = played
    everybody, columns = torch.ones_like(actives[0]), stage.shared_start.shape[1]
    # Also of a short run many rounds are seen: data may matter in the next.
    rounds, found = max(actives, scenario_rounds(actives), key=len), list[_Calls]()
    for scenario in scenarios:
        one, two = (World(algorithm, stage, seed, name) for name in _WORLDS)
        near.begin()
        for t, active in enumerate([everybody, *rounds]):
            seen = one.run_round(t, active, scenario)
            again = two.run_round(t, active, scenario, seen)
            calls = _calls(seen, _fresh(seen, again, label), columns, label)
            if t:
                found.append(calls)
            else:
                beginning = calls
            if t > len(actives):
                continue
            if t:
                near.look(seen)
            for call in seen:
                if call.verb in _BY_GRADIENTS:
                    readers |= call.others[0].to_dense() != 0
    seen = one.calls_before_use(everybody)
    fresh = _fresh(seen, two.calls_before_use(everybody, seen), label)
    return _Sighting(_calls(seen, fresh, columns, label), beginning, found)


_Fresh = list[tuple[tuple[bool, ...], bool]]
"""Of each call, which rows depend on data, and whether weights do."""


def _fresh(one: list[SeenCall], two: list[SeenCall], label: str) -> _Fresh:
    if [seen.verb for seen in one] != [seen.verb for seen in two]:
        raise Refusal(_depends(label))
    found = []
    for a, b in zip(one, two, strict=True):
        both = [map(tensor_of, seen.rows) for seen in (a, b)]
        rows = tuple(not _same(x, y) for x, y in zip(*both, strict=True))
        weights = any(not _same(x, y) for x, y in zip(a.others, b.others, strict=True))
        found.append((rows, weights))
    return found


def _depends(label: str) -> str:
    return (
        f"{label} cannot be trained privately: what it asks clients to send depends on "
        "their data."
    )


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    return torch.equal(one.to_dense(), two.to_dense())


def _calls(seen: list[SeenCall], fresh: _Fresh, columns: int, label: str) -> _Calls:
    """The calls, of which none tells what cannot be bounded."""
    calls, keys = [], keys_of(seen, columns)
    for key, one, (rows, secret) in zip(keys, seen, fresh, strict=True):
        for row, is_fresh in zip(one.rows, rows, strict=True):
            if is_fresh and not is_model(row, columns):
                raise Refusal(
                    f"{label} cannot be trained privately: by `{one.verb}` clients "
                    "send numbers that depend on their data and are no models or "
                    "gradients, so that nothing bounds them."
                )
        if secret and one.verb != "mix":
            raise Refusal(
                f"{label} cannot be trained privately: the weights of its "
                f"`{one.verb}`, which others see, depend on data."
            )
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


def _with_slots(key: Key, call: Call, slots: dict[tuple[Key, int], int]) -> Call:
    places = (slots.get((key, j), -1) for j in range(len(call.fresh)))
    return call._replace(slots=tuple(places))


def _tells(found: tuple[Key, Call]) -> bool:
    call = found[1]
    return any(call.fresh) or call.verb in _BY_GRADIENTS


def _is_gossip(rounds: list[list[Call]], kinds: list[int]) -> bool:
    """Whether all that is ever new are rows that go on from their last mixture."""
    found = False
    for calls in rounds:
        new = [c for c in calls if any(c.fresh) or c.verb in _BY_GRADIENTS]
        for call in new:
            here = call.verb == "mix" and not call.secret and call.slots[0] >= 0
            if len(new) > 1 or not here or kinds[call.slots[0]] != RESULT:
                return False
            found = True
    return found
