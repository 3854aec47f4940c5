"""The description of the CPU that this process runs on: measured, named by the user, or shipped."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from microkernels.cache_dir import cache_dir

from .description import Description, describe, described, read_description

MACHINE_VARIABLE = "TVM_HYBRID_MACHINE"
_CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
_CACHES = ("l1_bytes", "l2_bytes", "l3_bytes")


def calibrated_path(name: str) -> Path:
    """Where `tvm-hybrid calibrate` writes what it measures of a CPU; it need not exist."""
    return cache_dir() / f"machine-{name}.json"


def path_in_force(name: str) -> Path | None:
    """The file that describes this host's CPU: `TVM_HYBRID_MACHINE`, or what was calibrated.

    None if there is neither, so that the CPU's own description holds.
    """
    named = os.environ.get(MACHINE_VARIABLE)
    if named:
        return Path(named).expanduser()
    calibrated = calibrated_path(name)
    return calibrated if calibrated.is_file() else None


def describe_host(name: str) -> Description:
    """The description in force, with the caches that the operating system tells.

    Parameters
    ----------
    name : str
        LLVM's name of this host's CPU.

    Raises
    ------
    TargetError
        If the file in force cannot be read, or is no description.
    """
    path = path_in_force(name)
    if path is None:
        return _with_caches(describe(name))
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0  # reading it says what is wrong
    return _from_file(path, changed)


@functools.lru_cache(4)
def _from_file(path: Path, _changed: int) -> Description:
    return _with_caches(read_description(path))


@functools.cache
def _with_caches(found: Description) -> Description:
    """With caches as they are here, but for those that a file of the user's states itself."""
    shipped = described()
    sizes = {n: size for n, size in _sizes().items() if found.origins[n] in shipped}
    return found.with_numbers(sizes, "measured", "the operating system")


def _sizes() -> dict[str, int]:
    """Sizes of caches from sysfs; what the kernel does not tell is left out."""
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
