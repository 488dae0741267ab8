"""Checks of user input: each error names the argument, the rule and the value."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import math
import re
import sys
import sysconfig
import tomllib
import traceback
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch takes seconds to import, and `coterie init` needs none
    from torch import Tensor

_MOST = 1_000
"""The largest number of characters of a message. A longer message is cut in its middle,
where it quotes the user.
"""


class InputError(ValueError):
    """An error for input that cannot be used; the message is one clear sentence."""

    def __init__(self, message: str) -> None:
        """Leaves out the middle of a message that is too long."""
        more = len(message) - _MOST
        if more > 0:
            head, tail = message[: _MOST // 2], message[-_MOST // 4 :]
            message = f"{head}... ({more + _MOST // 4:,} letters left out) ...{tail}"
        ValueError.__init__(self, message)


class Problems(InputError):
    """Several errors at once, each one clear sentence."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = tuple(sentences)
        ValueError.__init__(self, " ".join(self.sentences))


class TrainingError(RuntimeError):
    """An error if training cannot go on; the message says where, and what to do."""


class DisconnectedError(RuntimeError):
    """An error if another process of a run has ended or cannot be reached."""


_LARGEST = sys.float_info.max
"""The largest number that a tensor can hold. Python's whole numbers may be larger."""

_TESTED_AT_ONCE = 2**18
"""The number of values that are tested in one pass."""

_SHOWN = 60
"""The largest number of characters of a value in a message."""


def brief(value: object) -> str:
    """A value as messages show it: with quotes around text, and shortened if long.

    >>> brief([1, 2]), len(brief(10**80)), brief("a" * 100)[-20:]
    ('[1, 2]', 60, "aa'... (100 letters)")
    """
    if isinstance(value, str):  # without the class name that NumPy's text shows
        text, more = str(value), len(value) > _SHOWN
        return repr(text[:_SHOWN]) + f"... ({len(text):,} letters)" * more
    large = isinstance(value, int) and value.bit_length() > 4000
    text = "a whole number of more than 1000 digits" if large else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def several(count: int, noun: str) -> str:
    """A number with its noun in the singular or plural.

    >>> several(1, "client"), several(1200, "row"), several(2, "category")
    ('1 client', '1,200 rows', '2 categories')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(word: str) -> str:
    """The plural of an English noun.

    >>> plural("hospital"), plural("factory"), plural("branch")
    ('hospitals', 'factories', 'branches')
    """
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}{'es' if word.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def number(
    name: str,
    value: float,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Returns `value` if it is a finite number within the given limits.

    >>> number("lr", 0.1, above=0)
    0.1
    """
    ordinary = isinstance(value, int | float) and not isinstance(value, bool)
    if not ordinary or not -_LARGEST <= value <= _LARGEST:
        raise InputError(f"`{name}` must be a finite number, got {brief(value)}.")
    limits = {
        f"greater than {above:g}": above == -math.inf or value > above,
        f"at least {at_least:g}": value >= at_least,
        f"at most {at_most:g}": value <= at_most,
        f"less than {below:g}": below == math.inf or value < below,
    }
    for rule, holds in limits.items():
        if not holds:
            raise InputError(f"`{name}` must be {rule}, got {brief(value)}.")
    return value


def integer(name: str, value: int, *, at_least: int, at_most: float = math.inf) -> int:
    """Returns `value` if it is a whole number within the limits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"`{name}` must be a whole number, got {brief(value)}.")
    if value < at_least:
        raise InputError(f"`{name}` must be at least {at_least}, got {brief(value)}.")
    if value > at_most:
        raise InputError(f"`{name}` must be at most {at_most:g}, got {brief(value)}.")
    return value


def within_64_bits(name: str, value: object) -> None:
    """Refuses whole numbers of more than 64 bits, also in nested tables or lists."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            within_64_bits(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            within_64_bits(name, inner)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(
            f"`{name}` must be a number of at most 64 bits, got {brief(value)}."
        )


def one_of(name: str, value: str, choices: Collection[str]) -> str:
    """Returns `value` if it is one of `choices`; errors suggest the nearest choice."""
    if value not in choices:
        raise InputError(
            f"`{name}` must be one of {', '.join(sorted(choices))}, "
            f"got {brief(value)}.{suggestion(value, choices)}"
        )
    return value


_EPOCHS = ", in minibatches: an epoch of n samples takes n / batch_size of them"
_ELSEWHERE = {
    **dict.fromkeys(("learning_rate", "step_size", "eta", "local_lr"), ("lr", "")),
    "epochs": ("steps", _EPOCHS),
    **dict.fromkeys(("local_epochs", "num_epochs"), ("epochs", "")),
    **dict.fromkeys(("local_steps", "num_steps", "local_updates"), ("steps", "")),
    **dict.fromkeys(("num_rounds", "global_rounds", "comm_rounds"), ("rounds", "")),
    **dict.fromkeys(("batch", "batchsize", "local_bs"), ("batch_size", "")),
    **dict.fromkeys(("seed", "random_state"), ("seeds", ", a list of whole numbers")),
    **dict.fromkeys(("join_ratio", "fraction_fit", "frac"), ("participation", "")),
    "perfedavg": ("per_fedavg", ""),
    "mu": ("lam", ""),
}
"""Maps a word of other tools to our name and the end of the hint about it."""


def suggestion(word: str, choices: Iterable[str]) -> str:
    """A sentence with the choice that is nearest to a misspelt word, or "".

    >>> suggestion("lamda", ["lr", "lam"]), suggestion("learning_rate", ["lr", "lam"])
    (" Did you mean 'lam'?", " Here it is called 'lr'.")
    """
    choices = list(choices)
    ours, more = _ELSEWHERE.get(str(word).lower(), ("", ""))
    if ours in choices:
        return (
            f" {more}" if more.endswith(".") else f" Here it is called '{ours}'{more}."
        )
    near = difflib.get_close_matches(str(word), list(choices), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


_TABLES = {
    **dict.fromkeys(("lr", "steps"), "[algorithm]"),
    **dict.fromkeys(("score", "measures", "loss", "personal"), "model"),
    **dict.fromkeys(("rounds", "seeds", "batch_size", "participation"), "run"),
    **dict.fromkeys(("target", "client", "path"), "data"),
    **dict.fromkeys(("validation", "test", "max_samples"), "split"),
}
"""Maps an option that users often put in a wrong table of a study to the right table.
"""


def option_hint(section: str, word: str, choices: Iterable[str]) -> str:
    """A sentence about an option that a table does not have, or "".

    >>> option_hint("run", "score", ["rounds"])
    ' It belongs to [model].'
    >>> option_hint("run", "learning_rate", ["rounds"])
    " It belongs to [[algorithm]], where it is called 'lr'."
    """
    known, word = list(choices), str(word)
    ours = _ELSEWHERE.get(word.lower(), (word, ""))[0]
    table = _TABLES.get(ours)
    if table is None or ours in known or table.strip("[]") == section:
        return suggestion(word, known)
    called = "" if ours == word else f", where it is called '{ours}'"
    return f" It belongs to [{table}]{called}."


def finite(name: str, tensor: Tensor) -> Tensor:
    """Returns `tensor` if all its entries are finite; the error names a wrong row."""
    import torch

    if not tensor.is_floating_point():
        return tensor
    rows = tensor if tensor.dim() else tensor[None]
    # Tests pieces, because a test needs as much memory as its input.
    at_once = max(1, _TESTED_AT_ONCE * len(rows) // max(1, rows.numel()))
    for first in range(0, len(rows), at_once):
        bad = ~torch.isfinite(rows[first : first + at_once])
        if bad.any():
            row = first + int(bad.reshape(len(bad), -1).any(1).nonzero()[0])
            raise InputError(f"`{name}` must be finite, but row {row} is not.")
    return tensor


def _refuse_shape(name: str, tensor: Tensor, shape: tuple[int, ...], of: str) -> None:
    if tensor.shape != shape:
        raise InputError(
            f"`{name}` must have shape {shape}, one {of} per client, "
            f"got {tuple(tensor.shape)}."
        )


def dense(name: str, matrix: Tensor, clients: int) -> Tensor:
    """Returns `matrix` if it is dense."""
    import torch

    if matrix.layout != torch.strided:
        raise InputError(f"`{name}` must be a dense matrix, got a sparse one.")
    return matrix


def square(name: str, matrix: Tensor, clients: int) -> Tensor:
    """Returns `matrix`, sparse or dense, if it is (clients, clients), finite, >= 0."""
    import torch

    _refuse_shape(name, matrix, (clients, clients), "row")
    rows, values = torch.arange(clients, device=matrix.device), matrix
    if matrix.layout != torch.strided:
        entries = matrix.to_sparse().coalesce()
        rows, values = entries.indices()[0], entries.values()
    for rule, holds in {
        "finite": values.isfinite(),
        "non-negative": values >= 0,
    }.items():
        if not holds.all():
            row = int(rows[~holds.reshape(len(rows), -1).all(1)][0])
            raise InputError(
                f"`{name}` must be {rule}, but row {row} (client {row}) is not."
            )
    return matrix


def positive(name: str, vector: Tensor, clients: int) -> Tensor:
    """Returns `vector` if it has shape (clients,) and finite entries > 0."""
    _refuse_shape(name, vector, (clients,), "entry")
    finite(name, vector)
    if not (vector > 0).all():
        row = int((vector <= 0).nonzero()[0])
        raise InputError(
            f"`{name}` must be positive, but entry {row} is {float(vector[row]):g}."
        )
    return vector


def mask(name: str, vector: Tensor, columns: int) -> Tensor:
    """Returns `vector` if it has one truth value for each column."""
    import torch

    if vector.dtype != torch.bool or vector.shape != (columns,):
        raise InputError(
            f"`{name}` must have true or false for the {columns} columns of a model, "
            f"got {vector.dtype} of shape {tuple(vector.shape)}."
        )
    return vector


def dissimilarity(name: str, matrix: Tensor, clients: int) -> Tensor:
    """Returns `matrix` if it is (clients, clients), symmetric, >= 0, diagonal 0.

    Entries may be infinite. The symmetry must hold up to rounding.

    Raises:
        InputError: names the first pair that breaks a rule.
    """
    import torch

    _refuse_shape(name, matrix, (clients, clients), "row")
    rules = {
        "not be NaN": matrix.isnan(),
        "be non-negative": matrix < 0,
        # Rounding in single precision is allowed, because a product may add in another
        # order.
        "be symmetric": ~matrix.isclose(matrix.T, rtol=1e-5, atol=0.0),
        "be 0 between a client and itself": torch.diag(matrix.diagonal() != 0),
    }
    for rule, broken in rules.items():
        if broken.any():
            i, k = broken.nonzero()[0].tolist()
            also = f" and {float(matrix[k, i]):g} the other way" if k != i else ""
            raise InputError(
                f"`{name}` must {rule}, but between clients {i} and {k} it is "
                f"{float(matrix[i, k]):g}{also}."
            )
    return matrix


def stochastic(name: str, matrix: Tensor, clients: int) -> Tensor:
    """Returns `matrix` if it is square, non-negative, and its rows sum to 1."""
    return _summing_to_1("row", name, square(name, matrix, clients))


def doubly_stochastic(name: str, matrix: Tensor, clients: int) -> Tensor:
    """Returns `matrix` if it is square, non-negative, and rows and columns sum to 1."""
    return _summing_to_1("column", name, stochastic(name, matrix, clients))


def _summing_to_1(what: str, name: str, matrix: Tensor) -> Tensor:
    """Returns `matrix`, sparse or dense, if every row or column sums to 1."""
    totals = matrix.sum(1 if what == "row" else 0).to_dense()
    worst = int((totals - 1).abs().argmax())
    # The rounding error of a sum of n terms in single precision.
    if abs(float(totals[worst]) - 1) > 1e-5:
        raise InputError(
            f"every {what} of `{name}` must sum to 1, "
            f"but {what} {worst} (client {worst}) sums to {float(totals[worst]):.4g}."
        )
    return matrix


def call(name: str, text: str) -> tuple[str, tuple[float, ...]]:
    """The word and the numbers of a setting such as `step(80, 0.1)`.

    >>> call("schedule", "step(80, 0.1)")
    ('step', (80.0, 0.1))
    """
    form = re.fullmatch(r"\s*([\w-]+)\s*(?:\(([^()]*)\))?\s*", text)
    if form is None:
        raise InputError(f"`{name}` must read like `word(1, 2)`, got {brief(text)}.")
    try:
        inside = (form[2] or "").strip()
        return form[1], tuple(float(part) for part in inside.split(",") if inside)
    except ValueError:
        raise InputError(
            f"`{name}` must have numbers in its brackets, got {brief(text)}."
        ) from None


def parameters_of(
    function: Callable[..., Any], *, ingredients: int | None = None
) -> dict[str, inspect.Parameter]:
    """The parameters that a user may set by name, with their rules if a method has any.

    Args:
        function: a factory, loader or split.
        ingredients: the number of leading parameters that users cannot set. None: users
            can set only those that are keyword-only.
    """
    signature = getattr(function, "declared", None) or inspect.signature(function)
    parameters = signature.parameters
    if ingredients is None:
        return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    return dict(list(parameters.items())[ingredients:])


def options(
    section: str,
    name: str,
    known: Mapping[str, inspect.Parameter],
    given: Mapping[str, object],
) -> None:
    """Refuses options that are unknown, missing, or of another type than the default.

    Args:
        section: the table with the options, such as "data".
        name: the name of what the options belong to.
        known: the result of `parameters_of`.
        given: the user's options.
    """
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for option, value in given.items():
        if option not in known:
            raise InputError(
                f"[{section}] {name} has no option {brief(option)}."
                f"{option_hint(section, option, known)}"
            )
        if isinstance(value, str) and takes_text(known[option]):
            for rule in getattr(known[option].annotation, "__metadata__", ()):
                if callable(rule):
                    rule(f"{section}.{option}", value)
        else:
            _same_type(f"{section}.{option}", known[option].default, value)
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in given:
            raise InputError(f"[{section}] {name} needs the option {brief(option)}.")


def takes_text(parameter: inspect.Parameter) -> bool:
    """Whether an option that is a number by default may also be text."""
    kind = parameter.annotation
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return str in (getattr(k, "__supertype__", k) for k in typing.get_args(kind))


def _same_type(name: str, default: object, value: object) -> None:
    """Refuses a type that differs from the default's; int is allowed for float."""
    kinds: dict[type, tuple[type, ...]] = {
        bool: (bool,),
        int: (int,),
        float: (int, float),
        str: (str,),
        tuple: (list, tuple),
        list: (list, tuple),
    }
    allowed = kinds.get(type(default))
    fits = allowed is None or isinstance(value, allowed)
    if not fits or (isinstance(value, bool) and allowed in ((int,), (int, float))):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        rule = {**words, str: "text"}.get(type(default), "a list")
        if isinstance(default, list | tuple) and {type(v) for v in default} == {int}:
            rule += " of whole numbers"
        raise InputError(f"`{name}` must be {rule}, got {brief(value)}.")


def import_object(name: str, value: str) -> Any:
    """The object that "module:attribute" names.

    The function stores the names of all modules that this import added, as
    `__brought__` of the module.

    >>> import_object("criterion", "math:sqrt")(4.0)
    2.0
    """
    module, _, attribute = value.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module):
        raise InputError(
            f"`{name}` must read module:attribute with the whole name of the module, "
            f"got {brief(value)}."
        )
    before = set(sys.modules)
    try:
        found = importlib.import_module(module)
        if "__brought__" not in vars(found):
            found.__brought__ = set(sys.modules) - before  # type: ignore[attr-defined]
        return getattr(found, attribute)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        plain = isinstance(error, ImportError | AttributeError) and str(error)
        raise InputError(
            f"`{name}` {brief(value)} cannot be imported: "
            f"{plain or describe_error(error)}."
        ) from error


def readable(name: str, value: str, found: Any) -> Callable[..., Any]:
    """Returns `found` if it is a function whose parameters can be read."""
    try:
        inspect.signature(found)
    except (TypeError, ValueError):
        raise InputError(
            f"`{name}` {brief(value)} must be a function whose options can be read, "
            f"got {brief(found)}."
        ) from None
    return found


@contextlib.contextmanager
def own_code(name: str, value: str) -> Iterator[None]:
    """A context that turns errors of user code into an InputError with their place.

    Args:
        name: the name of the setting.
        value: "module:attribute". A value without a colon names our own code, which
            raises its errors unchanged.
    """
    try:
        yield
    except (InputError, TrainingError, DisconnectedError):
        raise
    except (Exception, SystemExit) as error:
        if ":" not in value:
            raise
        raise InputError(
            f"`{name}` {brief(value)} raised {describe_error(error)}."
        ) from error


def describe_error(error: BaseException) -> str:
    """An error as part of a sentence, with its place in the user's files."""
    text = (str(error).splitlines() or [""])[0].rstrip(".")
    said = type(error).__name__ + (f": {text}" if text else "")
    installed = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")
    package = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((*installed, package)):
            return f"{said} ({Path(frame.filename).name}, line {frame.lineno})"
    return said


def expand_path(name: str, path: str | Path) -> Path:
    """The path, with the home folder in place of a leading ~."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user, or a user without a home
        raise InputError(
            f"`{name}` must name a home folder that this system knows, got "
            f"{brief(str(path))}: write the whole path."
        ) from None


def value_of(text: str) -> Any:
    """The value after `name=` on a command line: as in TOML, or the text itself.

    Raises:
        InputError: for more than one line, because TOML would drop the rest.
    """
    if len(text.splitlines()) > 1:
        raise InputError(f"a value of `--set` must be on one line, got {brief(text)}.")
    try:
        # This parses only if the text has a comment, which TOML would drop.
        tomllib.loads(f"value = {text} =")
        return text.strip()
    except (ValueError, RecursionError):
        pass
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()
