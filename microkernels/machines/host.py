"""Chooses the description of a CPU in force: the user's file, a calibrated or a shipped one."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from microkernels.base.files import cache_dir

from .description import Description, describe, described, read_description

MACHINE_VARIABLE = "TVM_HYBRID_MACHINE"
_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_CACHES = ("l1_bytes", "l2_bytes", "l3_bytes")


def calibrated_path(name: str) -> Path:
    """Where `tvm-hybrid calibrate` writes its measurements of a CPU; it need not exist."""
    return cache_dir() / f"machine-{name}.json"


def path_in_force(name: str) -> Path | None:
    """The file that describes this host's CPU: `TVM_HYBRID_MACHINE`, or the calibrated file.

    Returns None if there is neither; then the CPU's shipped description holds.
    """
    named = os.environ.get(MACHINE_VARIABLE)
    if named:
        return Path(named).expanduser()
    calibrated = calibrated_path(name)
    return calibrated if calibrated.is_file() else None


def describe_host(name: str, named: Path | None = None) -> Description:
    """The description in force, with the cache sizes that the operating system reports.

    Parameters
    ----------
    name : str
        LLVM's name of this host's CPU.
    named : Path or None
        A file that takes precedence over every other description.

    Raises
    ------
    TargetError
        If the file in force cannot be read, or is no description.
    """
    path = named or path_in_force(name)
    return _with_caches(describe(name) if path is None else describe_file(path))


def describe_file(path: Path) -> Description:
    """The description that a file holds now; the same object until the file changes.

    Raises
    ------
    TargetError
        If it cannot be read, or is no description.
    """
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0  # reading the file reports the error
    return _read(path, changed)


@functools.lru_cache(4)
def _read(path: Path, _changed: int) -> Description:
    return read_description(path)


@functools.lru_cache(8)
def _with_caches(found: Description) -> Description:
    """Replaces cache sizes by those of this host, except sizes stated in a user's file."""
    shipped = described()
    sizes = {n: size for n, size in _sizes().items() if found.origins[n] in shipped}
    return found.with_numbers(sizes, "measured", "the operating system")


def _sizes() -> dict[str, int]:
    """Sizes of caches from sysfs; sizes that the kernel does not report are left out."""
    sizes: dict[str, int] = {}
    for index in sorted(_CACHE_FOLDER.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and text.endswith("K") and text[:-1].isdigit():
            sizes[f"l{level}_bytes"] = int(text[:-1]) << 10
    return {name: size for name, size in sizes.items() if name in _CACHES}
