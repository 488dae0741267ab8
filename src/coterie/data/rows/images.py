"""Images that are kept as bytes or as JPEG, and become numbers when used.

A study that uses few images decodes only these. But to divide images among clients, it
needs a hash of the numbers of every image. So the first study decodes all images once,
and keeps the hashes in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...checks import InputError
from .caches import forget, keep, recall
from .hashes import hash_rows

_AT_ONCE = 512
"""The number of images that are decoded in one pass."""


@runtime_checkable
class Pixels(Protocol):
    """(M, C, H, W) images of bytes, decoded when some are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, C, H, W)."""

    def __getitem__(self, places: np.ndarray, /) -> np.ndarray:
        """The images at these places."""


class Images:
    """(M, C, H, W) images with values (pixel / 255 - mean) / std, for each channel."""

    def __init__(
        self,
        pixels: np.ndarray | Pixels,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        name: str = "",
    ) -> None:
        """Keeps the pixels as they are.

        Args:
            pixels: bytes (M, C, H, W), or images that decode into them.
            mean: the mean of each channel.
            std: the standard deviation of each channel.
            name: the name of the decoded pixels, and of the file of their hashes. If
                decoding is fast, "": no file is written.
        """
        self.shape = torch.Size(pixels.shape)
        self._pixels, self._mean, self._std = pixels, list(mean), list(std)
        self._name = name and f"{name} {self._mean} {self._std}"
        self._all: Tensor | None = None
        self._contents: Tensor | None = None
        self._taken = 0

    def __len__(self) -> int:
        return self.shape[0]

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def all(self) -> Float[Tensor, "m c h w"]:
        """All images, decoded once and kept."""
        if self._all is None:
            self._all = self._numbers(np.arange(len(self)))
        return self._all

    def some(self, places: Int[Tensor, " k"]) -> Float[Tensor, "k c h w"]:
        """The images at these places; no others are decoded."""
        self._taken += len(places)
        found = self._numbers(places.numpy())
        if self._name and self._contents is not None:
            known = self._contents[places]
            if not torch.equal(hash_rows(found, "features"), known):
                raise InputError(
                    f"the hashes of images in {forget(self._name)} were wrong, and are "
                    "deleted: run the study again."
                )
        return found

    def are_few(self, count: int) -> bool:
        """Whether `count` images and all images taken before are less than half of all.

        Otherwise it is faster to decode all images once and to keep them.
        """
        return self._all is None and 2 * (self._taken + count) < len(self)

    def contents(self) -> Int[Tensor, " m"]:
        """(M,) the hash of each image: `hash_rows` of its numbers."""
        if self._contents is None and self._name:
            self._contents = recall(self._name, len(self))
        if self._contents is None:
            every = np.arange(len(self))
            pieces = [every[k : k + _AT_ONCE] for k in every[::_AT_ONCE]]
            found = [hash_rows(self._numbers(some), "features") for some in pieces]
            self._contents = torch.cat(found)
            if self._name:
                keep(self._name, self._contents)
        return self._contents

    def _numbers(self, places: np.ndarray) -> Float[Tensor, "k c h w"]:
        found = torch.empty(len(places), *self.shape[1:])
        shape = (1, -1, 1, 1)
        mean, std = torch.tensor(self._mean), torch.tensor(self._std)
        for first in range(0, len(places), _AT_ONCE):
            images = self._pixels[places[first : first + _AT_ONCE]]
            numbers = found[first : first + _AT_ONCE]
            numbers.copy_(torch.from_numpy(np.ascontiguousarray(images)))
            numbers.div_(255).sub_(mean.reshape(shape)).div_(std.reshape(shape))
        return found
