"""JPEG images in one piece of memory, which are decoded when they are asked for."""

from __future__ import annotations

import hashlib
import itertools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import InputError

_SIZE = (32, 32)


class Jpegs:
    """(M, 3, 32, 32) images of bytes, from an npz file of JPEG codes.

    The file has three arrays for each part, "train" and "test": `blob_PART` (all codes,
    one after another), `off_PART` (the positions where each code begins, and the end)
    and `y_PART` (labels).
    """

    def __init__(self, path: Path) -> None:
        _decoder(path)
        self._path = path
        codes: list[bytes] = []
        labels = []
        try:
            with np.load(path, allow_pickle=False) as archive:
                for part in ("train", "test"):
                    blob = archive[f"blob_{part}"].tobytes()
                    cuts = archive[f"off_{part}"].tolist()
                    codes += [blob[a:b] for a, b in itertools.pairwise(cuts)]
                    labels.append(archive[f"y_{part}"])
            self.labels = np.concatenate(labels)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is corrupted: {error}.") from error
        self.tests = len(labels[-1])
        self.shape = (len(codes), 3, *_SIZE)
        self._codes = codes

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """The images at these places, decoded."""
        image = _decoder(self._path)
        try:
            # The bare decoder: Image.open also reads the header, which takes as long as
            # decoding.
            pixels = [
                image.frombytes(
                    "RGB", _SIZE, self._codes[place], "jpeg", "RGB", ""
                ).tobytes()
                for place in places
            ]
        except (OSError, ValueError) as error:
            raise InputError(f"{self._path} is corrupted: {error}.") from error
        raw = np.frombuffer(b"".join(pixels), np.uint8)
        return raw.reshape(-1, *_SIZE, 3).transpose(0, 3, 1, 2)

    @property
    def name(self) -> str:
        """A name for the decoded pixels: the file's digest, and who decodes it."""
        with self._path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "blake2b").hexdigest()
        return f"{digest} {decoder_versions()}"


def decoder_versions() -> tuple[str | None, ...]:
    """The versions of Pillow and of what decodes JPEG images for it."""
    from PIL import __version__, features

    return __version__, features.version("jpg"), features.version("libjpeg_turbo")


def _decoder(path: Path) -> Any:
    """Pillow's module of images."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            f"{path.name} holds JPEG images, which need: pip install coterie[images]."
        ) from error
    return Image
