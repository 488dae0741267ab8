"""A client's model with the preparation of its features, and rows to test it on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import seeds
from ..data.preparation import Preparation
from ..models import Architecture

ROWS = 64
"""The number of made-up samples on which a program is compared with its module."""


class PreparedModel(nn.Module):
    """A model that takes raw columns (B, C): numbers, codes of categories, NaN."""

    def __init__(self, how: Preparation, model: nn.Module, dtype: torch.dtype) -> None:
        """Joins a preparation and a model with parameters of `dtype`."""
        super().__init__()
        self.preparation = how.module()
        self.model = model
        self.dtype = dtype
        self.scales = how.unit is not None
        mean, scale = how.unit or ((0.0,), (1.0,))
        self.register_buffer("unit_mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("unit_scale", torch.tensor(scale, dtype=torch.float64))

    def forward(self, raw: Tensor) -> Tensor:
        """The outputs of the model; quantities are in the unit of the data."""
        # As in training, which makes features single precision first.
        features = self.preparation(raw.double()).float()
        found = self.model(features.to(self.dtype))
        if not self.scales:
            return found
        mean, scale = self.get_buffer("unit_mean"), self.get_buffer("unit_scale")
        return found.double() * scale + mean


class Inputs(NamedTuple):
    """The inputs of a module: batches of `dtype` with samples of `shape`."""

    shape: tuple[int, ...]
    dtype: str
    least: int = 0  # of whole numbers
    most: int = 0

    @classmethod
    def of(
        cls, made: Architecture, how: Preparation | None, whole: dict[str, Any] | None
    ) -> Inputs:
        """The inputs of a model: raw columns if there is a preparation.

        Args:
            made: the parts from which the model is made.
            how: the preparation of its features; None if there is none.
            whole: the keys `dtype`, `least` and `most`, if features are whole numbers;
            otherwise None.
        """
        if how is not None:
            return cls((len(how.columns),), "float64")
        if whole is not None:
            return cls(made.shape, whole["dtype"], whole["least"], whole["most"])
        return cls(made.shape, made.dtype)

    def samples(self, how: Preparation | None, count: int = ROWS) -> Tensor:
        """Made-up samples with values of about the size of training data."""
        rng = seeds.generator("export", *self.shape)
        size = (count, *self.shape)
        dtype = getattr(torch, self.dtype)
        if how is not None:
            return _raw_samples(how, torch.randn(size, generator=rng, dtype=dtype), rng)
        if dtype.is_floating_point:
            return torch.randn(size, generator=rng, dtype=dtype)
        return torch.randint(self.least, self.most + 1, size, generator=rng).to(dtype)


def _raw_samples(how: Preparation, noise: Tensor, rng: torch.Generator) -> Tensor:
    """Raw values around the means of training, with gaps and unknown categories."""
    raw = noise * torch.tensor(how.scale).to(noise) + torch.tensor(how.mean).to(noise)
    for place, column in enumerate(how.columns):
        if column.categories is not None:
            known = len(column.categories)
            codes = torch.randint(-1, known, (len(raw),), generator=rng)
            raw[:, place] = codes.to(raw)
    gaps = torch.rand(raw.shape, generator=rng) < 0.1
    return raw.masked_fill(gaps, torch.nan)
