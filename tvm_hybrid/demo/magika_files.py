"""Fetches magika, a pretrained file-type classifier (Apache-2.0), out of its published package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .published import Member, fetch

PACKAGE = "magika==1.0.3"
MEMBERS = {
    "magika.onnx": Member(
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    "config.min.json": Member(
        "magika/models/standard_v3_3/config.min.json",
        "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
    ),
    "content_types_kb.min.json": Member(
        "magika/config/content_types_kb.min.json",
        "75208adba69bc0556403b62b32ef3ccf8b5ce494411780845852e52e6583a10d",
    ),
}


@dataclass(frozen=True)
class MagikaFiles:
    """Where the model, its description and that of its labels lie."""

    model: Path
    config: Path
    types: Path


def fetch_magika(folder: Path | None = None) -> MagikaFiles:
    """The files, downloaded if they are not there yet.

    Parameters
    ----------
    folder : Path or None
        Where to keep them; None for a folder below `cache_dir()`.

    Raises
    ------
    DownloadError
        If the package cannot be downloaded or holds other files than expected.
    """
    return MagikaFiles(*fetch(PACKAGE, MEMBERS, folder))
