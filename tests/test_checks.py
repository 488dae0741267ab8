"""Claims about refusals: each names the argument, the rule and the value."""

from __future__ import annotations

import math
import pickle
import re

import pytest
import torch

from coterie import checks
from coterie.checks import InputError
from coterie.study import study_of
from support.refusals import refusal, refuses

LONG = "ab " * 40_000
KNOWN = checks.parameters_of(lambda *, lr=0.1: lr)


def test_an_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: checks.one_of("rate", LONG, ["slow", "fast"]),
        lambda: checks.call("rate", LONG),
        lambda: checks.import_object("rate", f"{LONG}:x"),
        lambda: checks.options("rate", "x", {}, {LONG: 1}),
        lambda: checks.options("rate", "x", KNOWN, {"lr": LONG}),
    ],
)
def test_of_a_long_value_a_message_shows_the_beginning(refused):
    text = refusal(refused)
    assert "rate" in text and len(text) < 250
    assert "ab ab" in text
    assert len(checks.brief([1.5] * 40_000)) == 60


def test_no_message_is_longer_than_a_screen():
    error = InputError(f"`label` must be short, got {LONG!r}. Did you mean 'ab'?")
    text = str(error)
    assert text.startswith("`label` must be short, got 'ab ab")
    assert text.endswith("ab '. Did you mean 'ab'?") and len(text) < 1_000
    left_out = int(text.split("... (")[1].split(" letters")[0].replace(",", ""))
    whole = len(f"`label` must be short, got {LONG!r}. Did you mean 'ab'?")
    assert left_out == whole - 750
    assert str(pickle.loads(pickle.dumps(error))) == text
    assert str(InputError("a" * 1_000)) == "a" * 1_000


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (math.nan, {}, "`rate` must be a finite number, got nan."),
        (math.inf, {}, "`rate` must be a finite number, got inf."),
        (-math.inf, {"at_most": 3}, "`rate` must be a finite number, got -inf."),
        (True, {}, "`rate` must be a finite number, got True."),
        (0.0, {"above": 0}, "`rate` must be greater than 0, got 0.0."),
        (-1, {"at_least": 0}, "`rate` must be at least 0, got -1."),
        (2.5, {"at_most": 1}, "`rate` must be at most 1, got 2.5."),
        (1.0, {"below": 1}, "`rate` must be less than 1, got 1.0."),
    ],
)
def test_numbers_outside_their_limits_are_refused(value, limits, message):
    assert refusal(checks.number, "rate", value, **limits) == message


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (0.1, {"above": 0}),
        (0, {"at_least": 0}),
        (1, {"at_most": 1}),
        (-7.5, {}),
        (0.999, {"at_least": 0, "below": 1}),
    ],
)
def test_numbers_within_their_limits_come_back(value, limits):
    assert checks.number("rate", value, **limits) == value


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (True, {"at_least": 0}, "`count` must be a whole number, got True."),
        (0, {"at_least": 1}, "`count` must be at least 1, got 0."),
        (9, {"at_least": 1, "at_most": 8}, "`count` must be at most 8, got 9."),
    ],
)
def test_whole_numbers_outside_their_limits_are_refused(value, limits, message):
    assert refusal(checks.integer, "count", value, **limits) == message
    assert checks.integer("count", 5, at_least=1, at_most=5) == 5


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (checks.number, "0.1", "`lr` must be a finite number, got '0.1'."),
        (checks.number, None, "`lr` must be a finite number, got None."),
        (checks.integer, 2.0, "`lr` must be a whole number, got 2.0."),
        (checks.integer, "2", "`lr` must be a whole number, got '2'."),
    ],
)
def test_values_of_another_type_are_refused_in_the_same_words(
    unchecked, check, value, message
):
    assert refusal(check, "lr", value, at_least=1) == message


def test_a_word_that_is_no_choice_is_refused_with_the_choices_and_the_nearest():
    assert refusal(checks.one_of, "rule", "papper", ("paper", "normalised")) == (
        "`rule` must be one of normalised, paper, got 'papper'. Did you mean 'paper'?"
    )
    assert checks.one_of("rule", "paper", ("paper", "normalised")) == "paper"


def test_nothing_is_suggested_when_nothing_is_near():
    assert checks.suggestion("xyz", ["alpha", "beta"]) == ""


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused_by_their_row(bad):
    matrix = torch.zeros(4, 2)
    matrix[2, 1] = bad
    refuses("`x` must be finite, but row 2 is not", checks.finite, "x", matrix)
    assert torch.equal(checks.finite("x", torch.ones(3)), torch.ones(3))
    with pytest.raises(InputError, match="`s` must be finite, but row 1 is not"):
        checks.finite("s", torch.tensor([0.0, bad]))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.ones(2, 3), r"`w` must have shape \(2, 2\), .*got \(2, 3\)"),
        (torch.ones(3, 3), r"`w` must have shape \(2, 2\), .*got \(3, 3\)"),
        (torch.ones(2), r"`w` must have shape \(2, 2\), .*got \(2,\)"),
        (torch.tensor([[1.0, 0], [math.nan, 1]]), "`w` must be finite, but row 1"),
        (torch.tensor([[1.0, -1], [0, 1]]), "`w` must be non-negative, but row 0"),
    ],
)
def test_matrices_that_are_not_square_or_negative_are_refused(matrix, message):
    for given in (matrix, matrix.to_sparse()):
        refuses(message, checks.square, "w", given, 2)
        refuses(message, checks.stochastic, "w", given, 2)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_rows_that_do_not_sum_to_one_are_refused_by_the_worst(sparse):
    matrix = torch.tensor([[0.5, 0.49], [0.5, 0.3]])
    given = matrix.to_sparse() if sparse else matrix
    assert refusal(checks.stochastic, "weights", given, 2) == (
        "every row of `weights` must sum to 1, but row 1 (client 1) sums to 0.8."
    )


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_columns_must_sum_to_one_where_both_must(sparse):
    matrix = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]])
    given = matrix.to_sparse() if sparse else matrix
    assert checks.doubly_stochastic("w", given, 3) is given
    matrix[1] = torch.tensor([0.75, 0.25, 0.0])
    given = matrix.to_sparse() if sparse else matrix
    assert checks.stochastic("w", given, 3) is given
    assert refusal(checks.doubly_stochastic, "w", given, 3) == (
        "every column of `w` must sum to 1, but column 0 (client 0) sums to 1.75."
    )


def test_an_empty_row_of_a_sparse_matrix_sums_to_zero():
    with pytest.raises(InputError, match=r"row 1 \(client 1\) sums to 0"):
        checks.stochastic("w", torch.diag(torch.tensor([1.0, 0.0])).to_sparse(), 2)


def test_rows_that_sum_to_one_but_for_rounding_are_accepted():
    matrix = torch.full((1000, 1000), 1 / 1000)
    assert checks.stochastic("weights", matrix, 1000) is matrix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", ("constant", ())),
        ("constant()", ("constant", ())),
        ("step(80, 0.1)", ("step", (80.0, 0.1))),
        (" step ( 80,1e-3 ) ", ("step", (80.0, 1e-3))),
        ("label-swap(2)", ("label-swap", (2.0,))),
    ],
)
def test_words_with_numbers_are_read(text, expected):
    assert checks.call("schedule", text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step(1", r"`schedule` must read like `word\(1, 2\)`, got 'step\(1'"),
        ("", "`schedule` must read like"),
        ("step(1)(2)", "`schedule` must read like"),
        (
            "step(one)",
            r"`schedule` must have numbers in its brackets, got 'step\(one\)'",
        ),
        ("step(1,)", r"`schedule` must have numbers in its brackets, got 'step\(1,\)'"),
    ],
)
def test_words_that_read_otherwise_are_refused(text, message):
    refuses(message, checks.call, "schedule", text)


def accepting_lists(*, hidden=(32,), names=["a"]) -> None:  # noqa: B006
    """Has options whose defaults are a tuple and a list."""


@pytest.mark.parametrize("option", ["hidden", "names"])
@pytest.mark.parametrize("value", ["32", 32, 4.5, True, {"a": 1}])
def test_an_option_whose_default_is_a_list_must_be_a_list(option, value):
    known = checks.parameters_of(accepting_lists)
    said = refusal(checks.options, "model", "own", known, {option: value})
    rule = "a list of whole numbers" if option == "hidden" else "a list"
    assert said == f"`model.{option}` must be {rule}, got {value!r}."
    for good in ([], [1, 2], (1, 2)):
        checks.options("model", "own", known, {option: good})


def test_a_value_on_the_command_line_is_toml_or_a_text():
    assert checks.value_of("[1, 2]") == [1, 2]
    assert checks.value_of("true") is True
    assert checks.value_of(" label_swap") == "label_swap"


@pytest.mark.parametrize("text", ["1\nrounds = 9", "1\r\n[run]", "a\nb", "[1,\n2]"])
def test_a_value_of_more_than_one_line_is_refused_not_cut(text):
    refuses("`--set` must be on one line, got", checks.value_of, text)


def test_a_value_keeps_what_stands_behind_a_number_sign():
    assert checks.value_of("5#6") == "5#6" and checks.value_of("5 # six") == "5 # six"
    assert checks.value_of('"5 # six"') == "5 # six" and checks.value_of("[1, 2]") == [
        1,
        2,
    ]


def test_a_home_that_nobody_has_is_refused_in_a_sentence():
    with pytest.raises(InputError, match=r"`path` must name a home folder .*'~nosuch"):
        checks.expand_path("path", "~nosuchuser/data.csv")


@pytest.mark.parametrize(
    ("word", "choices", "sentence"),
    [
        ("learning_rate", ["lr", "lam"], " Here it is called 'lr'."),
        ("Epochs", ["steps"], " Here it is called 'steps', in minibatches: an epoch"),
        ("seed", ["seeds"], " Here it is called 'seeds', a list of whole numbers."),
        ("epochs", ["rounds"], ""),  # of something that has no steps
    ],
)
def test_words_of_other_tools_are_known(word, choices, sentence):
    assert checks.suggestion(word, choices).startswith(sentence)
    assert bool(checks.suggestion(word, choices)) == bool(sentence)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"run": {"epochs": 3}}, "It belongs to [[algorithm]], where it is called"),
        ({"run": {"learning_rate": 3}}, "It belongs to [[algorithm]], where it is"),
        ({"run": {"score": "f1"}}, "It belongs to [model]."),
        ({"model": {"rounds": 3}}, "It belongs to [run]."),
        ({"algorithm": {"name": "local", "rounds": 3}}, "It belongs to [run]."),
        ({"algorithm": {"name": "local", "learning_rate": 3}}, "Here it is called"),
        ({"run": {"round": 3}}, "Did you mean 'rounds'?"),
    ],
)
def test_an_option_of_another_table_is_told_where_it_belongs(tables, sentence):
    study = {"data": {"name": "digits"}, "algorithm": [{"name": "local"}], **tables}
    refuses(re.escape(sentence), study_of, study)
