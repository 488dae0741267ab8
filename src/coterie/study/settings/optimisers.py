"""The table [optimizer] of a study: how local steps are taken, and the server's own.

A table applies to every method of a study that uses it. A method may have a table
`optimizer` of its own, whose options come first. The keys of the server begin with
"server".
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...algorithms import ALGORITHMS, AVERAGING
from ...checks import (
    InputError,
    brief,
    one_of,
    option_hint,
    options,
    takes_text,
)
from ...engine.servers import SERVERS, Server
from ...optim.optimisers import optimiser_of
from ...optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule
from ...options import (
    BelowOne,
    Formula,
    NotNegative,
    Positive,
    Whole,
    rules_of,
    unused_options,
)

Table = dict[str, Any]
"""The table [optimizer], or that of one method, as its author wrote it."""


def sgd(
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    nesterov: bool = False,
    weight_decay: LocalDecay = 0.0,
    clip: NotNegative = 0.0,
    warmup: Whole = 0,
    schedule: Schedule = "constant",
) -> LocalDescent:
    """Gradient steps, with momentum or with Nesterov's momentum, as in torch."""
    more = {"nesterov": nesterov, **_clip_and_warmup(clip, warmup)}
    if isinstance(lr, str):
        if not lr.startswith("curvature"):
            raise InputError(
                f"`optimizer.lr` of sgd must be a number or curvature(1), got {lr!r}."
            )
        word, size = "curvature", optimiser_of("optimizer.lr", lr).size
    else:
        word, size = "sgd", lr
    given = {key: value for key, value in more.items() if value}
    rule = lr if not given else _text(word, size, given)
    return LocalDescent(rule, momentum, weight_decay, schedule)


def adam(
    *,
    lr: Positive = 0.001,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.999,
    epsilon: Positive = 1e-8,
    weight_decay: LocalDecay = 0.0,
    clip: NotNegative = 0.0,
    warmup: Whole = 0,
    schedule: Schedule = "constant",
) -> LocalDescent:
    """Adam, with weight decay as a part of the gradient, as in torch."""
    own = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "decoupled": False}
    rule = _text("adam", lr, own | _clip_and_warmup(clip, warmup))
    return LocalDescent(rule, 0.0, weight_decay, schedule)


def adamw(
    *,
    lr: Positive = 0.001,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.999,
    epsilon: Positive = 1e-8,
    weight_decay: LocalDecay = 0.01,
    clip: NotNegative = 0.0,
    warmup: Whole = 0,
    schedule: Schedule = "constant",
) -> LocalDescent:
    """Adam, with weight decay outside of the gradient, as in torch."""
    own = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
    rule = _text("adam", lr, own | _clip_and_warmup(clip, warmup))
    return LocalDescent(rule, 0.0, weight_decay, schedule)


OPTIMISERS: dict[str, Callable[..., LocalDescent]] = {
    "adam": adam,
    "adamw": adamw,
    "sgd": sgd,
}
"""The optimisers of local steps by name."""


def _clip_and_warmup(clip: float, warmup: int) -> Table:
    """Clipping and warm-up, without those that are 0, which means none."""
    given = {"clip": clip, "warmup": warmup}
    return {key: value for key, value in given.items() if value}


def _text(word: str, size: float, given: Mapping[str, object]) -> Formula:
    """An optimiser as the text of an `lr`."""
    written = (
        f"{key}={str(value).lower() if isinstance(value, bool) else repr(value)}"
        for key, value in given.items()
    )
    return Formula(f"{word}({', '.join([repr(size), *written])})")


def checked_table(name: str, table: Any) -> Table:
    """The table, if its options are those of its optimiser and its server."""
    if not isinstance(table, dict):
        raise InputError(f"{name} must be a table, got {brief(table)}.")
    local, server = local_part(table), _server_part(table)
    kind = one_of("optimizer.name", _word("name", local, "sgd"), OPTIMISERS)
    known = _parameters(OPTIMISERS[kind])
    _refuse_bad(kind, known, {k: v for k, v in local.items() if k != "name"})
    if local:
        _local_rule(local, {})
    if "server" in server:
        kind = one_of("optimizer.server", _word("server", server, ""), SERVERS)
        _refuse_bad(kind, _server_parameters(kind), _all_but(server, "server"))
    elif server:
        key = min(server)
        raise InputError(
            f"`optimizer.{key}` needs `optimizer.server`, one of {', '.join(SERVERS)}."
        )
    return dict(table)


def _word(key: str, table: Table, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise InputError(f"`optimizer.{key}` must be text, got {brief(value)}.")
    return value


def local_part(table: Table) -> Table:
    """The options of local steps."""
    return {k: v for k, v in table.items() if not k.startswith("server")}


def _server_part(table: Table) -> Table:
    return {k: v for k, v in table.items() if k.startswith("server")}


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _all_but_several(
    known: Mapping[str, inspect.Parameter], keys: Iterable[str]
) -> dict[str, inspect.Parameter]:
    return {key: value for key, value in known.items() if key not in keys}


def _all_but(table: Table, key: str) -> Table:
    return {k: v for k, v in table.items() if k != key}


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a factory, with their rules."""
    hints = typing.get_type_hints(factory, include_extras=True)
    found = inspect.signature(factory).parameters
    return {name: p.replace(annotation=hints[name]) for name, p in found.items()}


def _server_parameters(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a server by their keys."""
    found = _parameters(SERVERS[kind]).items()
    return {f"server_{name}": parameter for name, parameter in found}


def _refuse_bad(
    kind: str, known: Mapping[str, inspect.Parameter], given: Table
) -> None:
    for key in given:
        if key not in known:
            hint = option_hint("optimizer", key, [*known, "name"])
            raise InputError(f"[optimizer] {kind} has no option {brief(key)}.{hint}")
    options("optimizer", kind, known, given)
    for key, value in given.items():
        for rule in rules_of(known[key].annotation):
            rule(f"optimizer.{key}", value)  # type: ignore[operator]


_OF_METHODS = {name: name for name in LocalDescent._fields}
"""The options that methods with local steps have themselves, by keys of the table."""

_OF_INNER_STEPS = {"lr": "inner_lr", "weight_decay": "weight_decay"}
"""The same for methods that solve inner problems, such as pfedme."""


def _names_in(known: Mapping[str, inspect.Parameter]) -> dict[str, str]:
    """What keys of the table are called in a method with these options."""
    if "lr" in known and takes_text(known["lr"]):
        return _OF_METHODS
    inner = "inner_lr" in known and takes_text(known["inner_lr"])
    return _OF_INNER_STEPS if inner else {}


def _local_rule(
    local: Table, own: Mapping[str, Any], names: Mapping[str, str] = _OF_METHODS
) -> LocalDescent:
    """The steps of a method, whose own options come first."""
    kind = local.get("name", "sgd")
    said = {key: own[name] for key, name in names.items() if name in own}
    given = _all_but(local, "name") | said
    _refuse_bad(kind, _parameters(OPTIMISERS[kind]), given)
    rule = OPTIMISERS[kind](**given)
    if given.get("nesterov") and not rule.momentum:
        raise InputError(
            "`optimizer.nesterov` needs `optimizer.momentum` above 0, got 0."
        )
    return rule


def uses_local(known: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a method with these options takes local steps."""
    return bool(_names_in(known))


def uses_server(name: str) -> bool:
    """Whether a method averages models; we know it of our own methods only."""
    return name in AVERAGING or name not in ALGORITHMS


def table_for(
    table: Table,
    own: Table,
    name: str,
    label: str,
    known: Mapping[str, inspect.Parameter],
    said: Mapping[str, Any],
) -> Table:
    """The options that a method uses, from the study's table and from its own table.

    Args:
        table: the table [optimizer] of the study.
        own: the method's table; the method must use all options in this table.
        name: the name of the method.
        label: the name of the method in errors.
        known: the options that the method has.
        said: the options of the method that the study sets.
    """
    local, server = local_part(table), _server_part(table)
    if local_part(own) and not uses_local(known):
        raise InputError(
            f"`optimizer.{next(iter(local_part(own)))}` is for local steps, and "
            f"{label} takes none: leave it out."
        )
    if _server_part(own) and not uses_server(name):
        raise InputError(
            f"`optimizer.server` is for methods whose server averages one model of all "
            f"clients, which {label} does not: leave it out."
        )
    used = (local if uses_local(known) else {}) | (server if uses_server(name) else {})
    return used_table(used | own, label, known, said)


def used_table(
    table: Table,
    label: str,
    known: Mapping[str, inspect.Parameter],
    said: Mapping[str, Any],
) -> Table:
    """The options that a method uses, checked with its own options."""
    made = checked_table(f"`optimizer` of {label}", table)
    if local_part(made):
        _refuse_inner_memory(local_part(made), label, known)
        _local_rule(local_part(made), said, _names_in(known))
    return made


def _refuse_inner_memory(
    local: Table, label: str, known: Mapping[str, inspect.Parameter]
) -> None:
    """Refuses options of many steps for steps that begin anew again and again."""
    if _names_in(known) != _OF_INNER_STEPS:
        return
    none = {"momentum": 0, "nesterov": False, "warmup": 0, "schedule": "constant"}
    for key, value in none.items():
        if local.get(key, value) != value:
            raise InputError(
                f"`optimizer.{key}` must be {str(value).lower()} for {label}, whose "
                "inner steps begin anew in every local round: say so in its own "
                f"`optimizer`, got {local[key]!r}."
            )


TUNED = "optimizer."
"""What begins the names of keys of the table that are searched."""


def tunable_keys(
    name: str, known: Mapping[str, inspect.Parameter]
) -> dict[str, inspect.Parameter]:
    """The keys of [optimizer] that a search may set for a method, with their prefix.

    Options that the method has itself are searched by their own names.
    """
    found: dict[str, inspect.Parameter] = {}
    for maker in OPTIMISERS.values() if uses_local(known) else ():
        found |= _all_but_several(_parameters(maker), _OF_METHODS)
    if found:
        found["name"] = inspect.Parameter("name", _KEYWORD, default="sgd")
    for kind in SERVERS if uses_server(name) else ():
        found |= _server_parameters(kind)
        found["server"] = inspect.Parameter("server", _KEYWORD, default="adam")
    return {TUNED + key: parameter for key, parameter in sorted(found.items())}


def flat_space(space: Table) -> Table:
    """A search space without nested tables: "clip" of `optimizer` is "optimizer.clip".

    >>> flat_space({"optimizer": {"clip": [1.0, 2.0]}})
    {'optimizer.clip': [1.0, 2.0]}
    """
    inner = space.get("optimizer", {})
    if not isinstance(inner, dict):
        raise InputError(f"`tune.space.optimizer` must be a table, got {brief(inner)}.")
    tuned = {TUNED + key: values for key, values in inner.items()}
    return _all_but(space, "optimizer") | tuned


def split_setting(setting: Mapping[str, Any]) -> tuple[Table, Table]:
    """Divides a setting of a search into options of the method and of [optimizer]."""
    table = {
        key.removeprefix(TUNED): value
        for key, value in setting.items()
        if key.startswith(TUNED)
    }
    return {k: v for k, v in setting.items() if not k.startswith(TUNED)}, table


def refuse_other_steps(
    table: Table, label: str, known: Mapping[str, inspect.Parameter]
) -> None:
    """Refuses [optimizer] for a method with other steps and no `lr` of its own."""
    if local_part(table) and "lr" in known and not uses_local(known):
        raise InputError(
            f"[optimizer] is for local steps, and {label} has steps of another kind: "
            "give it an `lr` of its own."
        )


def local_options(
    table: Table, own: Mapping[str, Any], known: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """The options of a method with its local steps as the table says.

    Options at their defaults are left out, so that a method need not know them.
    """
    local = local_part(table)
    if not local:
        return dict(own)
    names = _names_in(known)
    rule = _local_rule(local, own, names)._asdict()
    changed = {names["lr"]: rule.pop("lr")}
    for key, value in rule.items():
        if key not in names:
            continue  # refused before, if it is not at its default
        if key in known and (key in own or value != known[key].default):
            changed[key] = value
        elif key not in known and value != LocalDescent._field_defaults[key]:
            raise InputError(f"`optimizer.{key}` is not an option of this method.")
    return {**own, **changed}


def in_epochs(
    options: Mapping[str, Any], known: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """The options of a method that counts `epochs` as its steps.

    Its step size is a text, by which a method knows that clients take different numbers
    of steps. The steps are the same.
    """
    found = {k: v for k, v in options.items() if k != "epochs"}
    found["steps"] = options["epochs"]
    if _names_in(known) is _OF_METHODS:
        lr = options.get("lr", known["lr"].default)
        found["lr"] = lr if isinstance(lr, str) else _text("sgd", lr, {})
    return found


def server_of(table: Table) -> Server | None:
    """The optimiser of the server; None: it has none."""
    if "server" not in table:
        return None
    given = _all_but(_server_part(table), "server")
    names = {key.removeprefix("server_"): value for key, value in given.items()}
    return SERVERS[table["server"]](**names)


def refuse_in_time(
    table: Table, options: Mapping[str, Any], maker: Callable[..., Any], label: str
) -> None:
    """Refuses options that need a memory, if the method keeps no memory with [time].

    Args:
        table: the options of [optimizer] that the method uses.
        options: the options with which the method is made.
        maker: the factory of the method.
        label: the name of the method in errors.
    """
    local, unused = local_part(table), unused_options(maker, waits=False)
    if local.get("name", "sgd") != "sgd" and "momentum" in unused:
        raise InputError(
            f"`optimizer.name` {local['name']} of {label} needs rounds: in time, its "
            "clients do not keep means of gradients."
        )
    if local.get("warmup") and "schedule" in unused:
        raise InputError(
            f"`optimizer.warmup` of {label} needs rounds: in time, its steps are not "
            "numbered."
        )
    if not isinstance(lr := options.get("lr"), str):
        return
    optimiser = optimiser_of("lr", lr)
    if optimiser.is_adam and "momentum" in unused:
        raise InputError(
            f"`lr` adam of {label} needs rounds: in time, its clients do not keep "
            f"means of gradients, got {lr!r}."
        )
    if optimiser.warmup and "schedule" in unused:
        raise InputError(
            f"`warmup` in `lr` of {label} needs rounds: in time, its steps are not "
            f"numbered, got {lr!r}."
        )


_MEASURED = ("curvature(", "samples(")
"""What texts of options begin with that depend on clients' data."""


def measured_option(options: Mapping[str, Any]) -> str:
    """The name of the first option that depends on clients' data, or nothing."""
    for name, value in options.items():
        each = value if isinstance(value, list) else [value]
        if any(isinstance(one, str) and one.startswith(_MEASURED) for one in each):
            return name
    return ""
