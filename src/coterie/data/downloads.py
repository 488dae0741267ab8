"""Data files: finds them, checks their hashes, and downloads them on request.

Nothing is downloaded unless the caller says so: a machine that holds private data must
not open connections that nobody asked for.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..checks import InputError, expand_path


class Source(NamedTuple):
    """A file, its official address, and its hash."""

    file: str
    url: str
    digest: str  # "md5:..." or "sha256:..."


def root(data_dir: str) -> Path:
    """The folder of data files: `data_dir`, COTERIE_DATA or a folder for caches."""
    chosen = data_dir or os.environ.get("COTERIE_DATA", "") or "~/.cache/coterie"
    return expand_path("data_dir or COTERIE_DATA", chosen)


def find(file: str, folders: Sequence[str], data_dir: str) -> Path | None:
    """The path of the file; None if it is in none of these folders nor in the root."""
    top = root(data_dir)
    places = [*(top / folder / file for folder in folders), top / file]
    return next((place for place in places if place.is_file()), None)


def obtain(
    sources: Sequence[Source],
    folders: Sequence[str],
    *,
    data_dir: str = "",
    download: bool = False,
) -> list[Path]:
    """The paths of these files, after their hashes were checked.

    Args:
        sources: the files.
        folders: names of folders that may hold them; downloads go to the first.
        data_dir: the root; by default COTERIE_DATA or ~/.cache/coterie.
        download: whether to download missing files.
    """
    found = {source: find(source.file, folders, data_dir) for source in sources}
    missing = [source for source, path in found.items() if path is None]
    if missing and not download:
        files = ", ".join(source.file for source in missing)
        raise InputError(
            f"missing {files} in {root(data_dir) / folders[0]}: name the folder that "
            "holds them with data.data_dir=... or the variable COTERIE_DATA, or fetch "
            "them with data.download=true."
        )
    paths = []
    for source, path in found.items():
        if path is None:
            path = root(data_dir) / folders[0] / source.file
            fetch(source, path)
        else:
            verify(path, source.digest)
        paths.append(path)
    return paths


def verify(path: Path, digest: str) -> None:
    """Raises InputError unless the file has this hash."""
    algorithm, _, expected = digest.partition(":")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, algorithm).hexdigest()
    if found != expected:
        raise InputError(
            f"{path} is corrupted: its {algorithm} must be {expected}, found {found}."
        )


def fetch(source: Source, path: Path) -> None:
    """Downloads a file, checks its hash, and then moves it to its path."""
    # In the same folder, so that the final rename is atomic.
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                urllib.request.urlopen(source.url, timeout=60) as answer,
                partial.open("wb") as copy,
            ):
                shutil.copyfileobj(answer, copy)
            verify(partial, source.digest)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"cannot download {source.url} to {path}: {error}.") from error


def _sources(place: str, digests: dict[str, str]) -> list[Source]:
    """The files at one address, with their md5."""
    return [Source(file, place + file, f"md5:{md5}") for file, md5 in digests.items()]


MNIST = _sources(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
FASHION_MNIST = _sources(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)
QMNIST = _sources(
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
    {"qmnist-train-labels-idx2-int.gz": "0058f8dd561b90ffdd0f734c6a30e5e4"},
)
HEART = _sources(
    "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
    {
        "processed.cleveland.data": "2d91a8ff69cfd9616aa47b59d6f843db",
        "processed.hungarian.data": "22e96bee155b5973568101c93b3705f6",
        "processed.switzerland.data": "9a87f7577310b3917730d06ba9349e20",
        "processed.va.data": "4249d03ca7711e84f4444768c9426170",
    },
)
# The binary version, because the usual one has pickles, which may run code.
CIFAR = _sources(
    "https://www.cs.toronto.edu/~kriz/",
    {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
)
HOUSES = [
    Source(
        "cal_housing.tgz",
        "https://ndownloader.figshare.com/files/5976036",
        "sha256:aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
    )
]
