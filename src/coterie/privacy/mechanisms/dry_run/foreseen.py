"""Plans the messages of a method, by a dry run on clients without data.

We run the method through all its rounds twice, in two worlds. Clients have other data
in the second world, but every verb (a call by which clients exchange rows) answers as
in the first world. If a client sends the same row in both worlds, the row reveals
nothing new, and may leave as it is. If the rows differ, they depend on data. A row with
the length of a model is then released with noise, and clipped around a reference:

    zero, the last row that was released in this call, or the last result of this call.

The dry run also finds which reference is nearest; it uses no data for this. Clipping
cannot bound other numbers that depend on data, such as counts or weights that others
see. So we refuse a method that sends such numbers.

Losses can be bounded. So a method that would be refused gets a second dry run, in which
clients release every loss that a client program asks for. So losses, too, are the same
in both worlds. The next steps of the method may depend on released losses. So we run
the method in several scenarios of losses. There we identify calls by their sort,
because their order may change.

If a row differs between the two worlds, it depends on data. If it does not differ, it
may still depend on data in other worlds. So we also track marks (`origins`) through all
rounds. Everything computed from clients' answers counts as new, even if both worlds
agree. If a row is new in any round, it counts as new in all rounds. We try many rounds
even for a short run.

The dry run also checks what a method declares (`declarations`), and refuses a method
that releases more. All this is a plan, and every round of training is checked against
it (`watching`).
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
"""Verbs with which clients send each other gradients."""


class Refusal(InputError):
    """A method sends something that cannot be made private."""


class Call(NamedTuple):
    """A planned call of a verb between clients."""

    verb: str
    fresh: tuple[bool, ...]  # which of its rows reveal something new
    slots: tuple[int, ...]  # place of each row's reference; -1: it is zero
    secret: bool = False  # whether only their readers know the weights
    shares: Tensor | None = None  # (N,) for an average


class CallPlan(NamedTuple):
    """The planned calls: in the beginning, in each round, and when models are used."""

    rounds: list[list[Call]]  # the first is the beginning
    use: list[Call]
    slots: list[int]  # OWN or RESULT: what each place keeps
    readers: Bool[Tensor, "n n"]  # [i, k]: whether i's model ever goes to k
    gossip: bool  # whether each round has one new row, mixed with those of neighbours
    stage: Stage  # of the dry run
    by_key: dict[Key, Call] | None = None
    """If losses are released: the calls of every round. Then `rounds` has only the
    calls of the beginning. If losses stay with clients: None."""

    def calls(self, t: int) -> list[Call] | None:
        """The calls of round t in their order; None: they are in `by_key`."""
        return self.rounds[t] if t == 0 or self.by_key is None else None

    @property
    def releases(self) -> Releases:
        """The most that a client releases in a round, as a method declares it."""
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
        """The verbs that send something new."""
        return frozenset(v for v in _VERBS if getattr(self.releases, v))

    @property
    def sums(self) -> bool:
        """Whether the method ever averages rows that reveal something new."""
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
    """All calls of an algorithm, round by round.

    Args:
        algorithm: a method with rounds.
        actives: which clients take part in each round.
        seed: the seed of the study, for the algorithm's random draws.
        label: the name of the algorithm in errors.
        personal: whether some columns never leave their clients.
        columns: the number of columns of the model, for methods that work only with
            this number.

    Raises:
        Refusal: if it sends something that cannot be made private.
        UndeclaredRelease: if it releases more than it declares.
    """
    few = small_stage(len(actives[0]), personal)
    if (home := algorithm.home) is not None:
        few = few._replace(columns=len(home), kept=home.cpu())
    played = _DryRun(algorithm, actives, seed, label, few)
    try:
        found = _foreseen_of(played)
    except Refusal:
        raise
    except Exception:  # any, because the model is shorter than its own
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

    If privacy protects single samples, we need only this check and no plan of calls.
    The check includes releases that nothing bounds. If a method does not run on short
    models without data, we cannot check it, and do not refuse it.
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
    except Exception:  # any, because the method was not made for these models
        return


class _DryRun(NamedTuple):
    """A method, and the setting of its dry run."""

    algorithm: Algorithm
    actives: Sequence[Bool[Tensor, " n"]]
    seed: int
    label: str
    stage: Stage
    scenarios: Sequence[int | None] = (None,)  # of losses, if they are released


def _foreseen_of(played: _DryRun) -> CallPlan:
    """The planned calls; clients release losses only if there is no plan without."""
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
            f"{label} cannot be trained privately: clients send each other rows that "
            "depend on their data whenever its models are used."
        )
    _refuse_blends_with_others(differs, label)
    calls = [pair for some in (*differs.rounds, *marked.rounds) for pair in some]
    chosen = near.choose({key for key, call in calls if call.secret})
    slots = {key: place for place, key in enumerate(chosen)}
    many = len(differs.rounds) if by_losses else len(actives)
    # The beginning is separate, because nobody has looked at data before.
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
    """Refuses `blended` with other verbs, because part of its answers is without noise.

    If nobody reads the model of a client, the client uses its own gradient without
    noise.
    """
    verbs = {call.verb for some in (seen.beginning, *seen.rounds) for _, call in some}
    if "blended" in verbs and (others := verbs - {"blended", "compare"}):
        raise Refusal(
            f"{label} cannot be trained privately: it uses `blended`, whose answers "
            f"are partly without noise, and also sends rows by `{min(others)}`."
        )


class _Sighting(NamedTuple):
    """The calls of a method, and what in each call depends on data."""

    use: _Calls
    beginning: _Calls
    rounds: list[_Calls]  # over all scenarios


def _trace(played: _DryRun, wanted: set[Key]) -> _Sighting:
    """What depends on clients' answers; tries scenarios until it saw all `wanted`."""
    algorithm, actives, seed, label, stage, scenarios = played
    # Marks are for whole rows, and columns at home change none of the calls.
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
            read = following.read  # the next round knows what this one has read
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
    """What differs between two worlds; updates `near` and `readers`."""
    algorithm, actives, seed, label, stage, scenarios = played
    everybody, columns = torch.ones_like(actives[0]), stage.shared_start.shape[1]
    # Even a short run has many dry rounds, because data may matter later.
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
"""For each call, which rows depend on data, and whether weights do."""


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
        f"{label} cannot be trained privately: the calls that it makes depend on data "
        "of clients."
    )


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    return torch.equal(one.to_dense(), two.to_dense())


def _calls(seen: list[SeenCall], fresh: _Fresh, columns: int, label: str) -> _Calls:
    """The calls; refuses a call that reveals something without a bound."""
    calls, keys = [], keys_of(seen, columns)
    for key, one, (rows, secret) in zip(keys, seen, fresh, strict=True):
        for row, is_fresh in zip(one.rows, rows, strict=True):
            if is_fresh and not is_model(row, columns):
                raise Refusal(
                    f"{label} cannot be trained privately: by `{one.verb}` clients "
                    "send numbers that depend on their data and that nothing bounds, "
                    "because they are neither models nor gradients."
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
    """The calls; a row counts as new in all rounds if it is new in any round.

    In a single round, two worlds may agree by chance, for example in a choice.
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
    """Whether all new rows are gossip, with their last mixtures as references."""
    found = False
    for calls in rounds:
        new = [c for c in calls if any(c.fresh) or c.verb in _BY_GRADIENTS]
        for call in new:
            here = call.verb == "mix" and not call.secret and call.slots[0] >= 0
            if len(new) > 1 or not here or kinds[call.slots[0]] != RESULT:
                return False
            found = True
    return found
