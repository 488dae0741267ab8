"""Claims about models that several clients share."""

from __future__ import annotations

import torch

from coterie.collaboration.shared import first_of_each, models_of

ROWS = torch.tensor([[3.0, 30.0], [1.0, 10.0], [3.0, 30.0], [2.0, 20.0]])
NUMBERS = torch.tensor([3, 1, 3, 2])


def test_a_model_is_kept_once_and_found_by_its_number():
    known = models_of(NUMBERS, ROWS)
    assert known.numbers.tolist() == [1, 2, 3]
    assert torch.equal(known.of(NUMBERS), ROWS)


def test_new_models_replace_those_of_their_numbers_and_others_stay():
    known = models_of(NUMBERS, ROWS)
    new = known.with_models(torch.tensor([5, 2, 5]), -torch.ones(3, 2))
    assert new.numbers.tolist() == [1, 2, 3, 5]
    assert new.rows[:, 0].tolist() == [1.0, -1.0, 3.0, -1.0]
    assert known.rows[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_parts_are_found_by_number_and_part():
    known = models_of(NUMBERS, torch.stack([ROWS, -ROWS], 1))
    found = known.parts_of(torch.tensor([2, 3]), torch.tensor([1, 0]))
    assert torch.equal(found, torch.tensor([[-2.0, -20.0], [3.0, 30.0]]))


def test_the_first_place_of_each_number_is_found():
    numbers, first = first_of_each(NUMBERS)
    assert (numbers.tolist(), first.tolist()) == ([1, 2, 3], [1, 3, 0])
