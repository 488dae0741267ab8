"""Images of Hugging Face's library `datasets`, decoded when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import InputError, brief
from ..rows.jpegs import decoder_versions

_BYTES = ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV")
"""Pillow's names of images whose channels are bytes."""

_CONVERTED = {"1": "L", "P": "RGB", "PA": "RGBA"}
"""Black and white, and colours by their number in a palette."""


class EncodedImages:
    """(M, C, H, W) images of bytes, from a column of the splits of a data set.

    All images must have the size and the channels of the first one. This is checked
    when an image is decoded.
    """

    def __init__(self, parts: Mapping[str, Any], column: str) -> None:
        """Decodes only the first image.

        Args:
            parts: the splits, each a `datasets.Dataset`.
            column: the column of images.
        """
        self._column, self._kinds, self._parts = column, [], []
        for some in parts.values():
            kind = some.features[column]
            self._kinds.append(type(kind)(mode=kind.mode))  # of images to be decoded
            encoded = some.with_format(None).select_columns([column])
            self._parts.append(
                encoded.cast_column(column, type(kind)(mode=kind.mode, decode=False))
            )
        self._begins = np.cumsum([0, *map(len, self._parts)])
        first = self._decode(0, self._codes_at(np.arange(1))[0])
        self.shape = (int(self._begins[-1]), *first.shape)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """The images at these places, decoded."""
        found = np.empty((len(places), *self.shape[1:]), np.uint8)
        for row, encoded in enumerate(self._codes_at(places)):
            image = self._decode(int(places[row]), encoded)
            if image.shape != self.shape[1:]:
                raise InputError(
                    f"all images must have one size and the same channels, but image "
                    f"{places[row]} of {self._column!r} has {image.shape} (channels, "
                    f"height, width) and image 0 {self.shape[1:]}: give the column the "
                    'type `datasets.Image(mode="RGB")` if channels differ, and resize '
                    "images if sizes differ."
                )
            found[row] = image
        return found

    @property
    def name(self) -> str:
        """A name for the decoded pixels: a digest of all codes, and the decoder.

        "" if images are in files of their own.
        """
        digest = hashlib.blake2b()
        for first in range(0, self.shape[0], 1000):
            places = np.arange(first, min(first + 1000, self.shape[0]))
            for encoded in self._codes_at(places):
                if encoded is None or not encoded["bytes"]:
                    return ""
                digest.update(len(encoded["bytes"]).to_bytes(8, "big"))
                digest.update(encoded["bytes"])
        modes = [kind.mode for kind in self._kinds]
        return f"{digest.hexdigest()} {modes} {decoder_versions()}"

    def _codes_at(self, places: np.ndarray) -> list[Any]:
        """What the column has in these rows."""
        found: list[Any] = [None] * len(places)
        which = np.searchsorted(self._begins, places, side="right") - 1
        for number, part in enumerate(self._parts):
            mine = np.flatnonzero(which == number)
            if len(mine):
                rows = part[(places[mine] - self._begins[number]).tolist()]
                for place, encoded in zip(mine, rows[self._column], strict=True):
                    found[place] = encoded
        return found

    def _decode(self, place: int, encoded: Any) -> np.ndarray:
        """(C, H, W) the bytes of an image."""
        whose = f"image {place} of {self._column!r}"
        if encoded is None:
            raise InputError(f"{whose} is missing: take out such rows.")
        kind = self._kinds[int(np.searchsorted(self._begins, place, side="right")) - 1]
        try:
            image = kind.decode_example(encoded)
            mode = _CONVERTED.get(image.mode, image.mode)
            image = image if image.mode == mode else image.convert(mode)
        except (OSError, ValueError, SyntaxError) as error:
            name = f" ({Path(encoded['path']).name})" if encoded["path"] else ""
            raise InputError(
                f"{whose}{name} cannot be decoded: {brief(str(error))}."
            ) from error
        if mode not in _BYTES:
            raise InputError(
                f"{whose} has mode {mode!r}, but channels of images must be bytes: "
                "give its numbers as a column of arrays."
            )
        pixels = np.asarray(image)
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
