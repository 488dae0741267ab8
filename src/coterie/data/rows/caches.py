"""Hashes of images in a file, so that the next study need not decode all images."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


def recall(name: str, count: int) -> Int[Tensor, " {count}"] | None:
    """The hashes that were kept under this name; None if there are none."""
    try:
        found = np.load(_file(name), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    sound = found.shape == (count,) and found.dtype == np.int64
    return torch.from_numpy(found) if sound else None


def keep(name: str, hashes: Int[Tensor, " m"]) -> None:
    """Keeps the hashes under this name, if the folder can be written."""
    path = _file(name)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as stream:
                np.save(stream, hashes.numpy(), allow_pickle=False)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def forget(name: str) -> Path:
    """Deletes what was kept under this name; returns its file."""
    path = _file(name)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    return path


def _file(name: str) -> Path:
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return Path("~/.cache/coterie/hashes").expanduser() / f"{digest}.npy"
