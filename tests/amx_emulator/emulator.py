"""The AMX emulator from Python: builds it, installs it in this process, reads its counters.

To execute code for AMX on a machine without it:

    with emulator.running():
        kernel(a, b, c)
    assert emulator.counts()["tdpbusd"] == 64

On a machine with AMX nothing is emulated: `install` returns False, `running` asks Linux for the
permission to use tiles, and `counts` is None. So one test runs on both kinds of machines.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from filelock import FileLock

FOLDER = Path(__file__).resolve().parent
SOURCES = ("decode.c", "dot_products.c", "glue.c", "hooks.c", "tiles.c", "trap.c")
# No contraction: every operation rounds as it is written.
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden")
LIBRARIES = ("-lm", "-pthread")

_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


class EmulatorError(RuntimeError):
    """The emulator cannot be built or installed, or code that ran under it faulted."""


def available() -> bool:
    """Whether AMX can be emulated here: x86-64 Linux on a CPU without AMX."""
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        return False
    return not _cpu_has_amx()


@functools.cache
def _cpu_has_amx() -> bool:
    """Whether this CPU has AMX and Linux has switched it on."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        flags = next((line for line in lines if line.startswith("flags")), "")
    return "amx_tile" in flags.split()


def compiler() -> str:
    """The command of a C compiler.

    Raises
    ------
    EmulatorError
        If there is no compiler.
    """
    for name in ("gcc", "cc", "clang"):
        if shutil.which(name):
            return name
    raise EmulatorError("the AMX emulator needs a C compiler: install gcc or g++")


def _cache_folder() -> Path:
    """Folder of built emulators: in the repository, or in the temporary folder."""
    for parent in (FOLDER.parents[1] / "build", Path(tempfile.gettempdir())):
        folder = parent / "amx_emulator"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise EmulatorError("no writable folder for the built AMX emulator was found")


@functools.cache
def library_path() -> Path:
    """The built emulator, for LD_PRELOAD and other processes; compiled at the first use.

    Raises
    ------
    EmulatorError
        If there is no compiler, or it fails.
    """
    flags = (compiler(), *FLAGS, *LIBRARIES)
    key = hashlib.sha256(" ".join(flags).encode())
    for name in ("amx_emulator.h", *SOURCES):
        key.update((FOLDER / name).read_bytes())
    library = _cache_folder() / f"libamx_emulator-{key.hexdigest()[:16]}.so"
    with FileLock(f"{library}.lock"):
        if not library.exists():
            partial = library.with_suffix(f".{os.getpid()}.tmp")
            sources = [str(FOLDER / name) for name in SOURCES]
            command = [compiler(), *FLAGS, *sources, "-o", str(partial), *LIBRARIES]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise EmulatorError(f"the AMX emulator does not compile:\n{result.stderr}")
            partial.replace(library)
    return library


@functools.cache
def library() -> ctypes.CDLL:
    """The emulator's library with typed functions; its symbols are visible to the whole process."""
    loaded = ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_GLOBAL)
    for name in ("name", "first_error", "last_error"):
        getattr(loaded, f"amx_emulator_{name}").restype = ctypes.c_char_p
    for name in ("count", "traps", "glue_steps"):
        getattr(loaded, f"amx_emulator_{name}").restype = ctypes.c_uint64
    for name in ("errors", "threads_configured"):
        getattr(loaded, f"amx_emulator_{name}").restype = ctypes.c_int64
    return loaded


def install() -> bool:
    """Emulates AMX instructions in all threads of this process; repeated calls do no harm.

    A faulting instruction is recorded and skipped: the process goes on, and `running` raises.

    Returns
    -------
    bool
        False on a machine that has AMX, or cannot run the emulator.

    Raises
    ------
    EmulatorError
        If the emulator cannot be built or installed.
    """
    if not available():
        return False
    if library().amx_emulator_install(1) < 0:
        raise EmulatorError("Linux does not let the AMX emulator handle SIGILL")
    return True


def active() -> bool:
    """Whether this process emulates AMX, so that its counters are valid."""
    return available() and bool(library().amx_emulator_active())


def counts() -> dict[str, int] | None:
    """Executed instructions by kind, of all threads since `reset`; None on real hardware.

    `tileloaddt1` counts as `tileloadd`: they differ only in a hint to the caches.
    """
    if not available():
        return None
    found = counts_by_name()
    found["tileloadd"] += found.pop("tileloaddt1")
    return found


def counts_by_name() -> dict[str, int]:
    """Like `counts`, with `tileloaddt1` counted separately; not for real hardware."""
    found: dict[str, int] = {}
    number = 0
    while (name := library().amx_emulator_name(number)) is not None:
        found[name.decode()] = int(library().amx_emulator_count(number))
        number += 1
    return found


def traps() -> int:
    """Signals since `reset`; a trap executes many instructions."""
    return int(library().amx_emulator_traps()) if available() else 0


def reset() -> None:
    """Resets the counters; forgets errors and the threads with a tile configuration."""
    if available() and library.cache_info().currsize:  # otherwise nothing was counted
        library().amx_emulator_reset()


def errors() -> int:
    """Faults since `reset`."""
    return int(library().amx_emulator_errors()) if available() else 0


def first_error() -> str:
    """The first fault since `reset`, usually the cause of later ones; "" if there was none."""
    return library().amx_emulator_first_error().decode() if available() else ""


def last_error() -> str:
    """The last fault since `reset`; "" if there was none."""
    return library().amx_emulator_last_error().decode() if available() else ""


def threads_configured() -> int:
    """Number of threads that loaded a tile configuration since `reset` and did not release it."""
    return int(library().amx_emulator_threads_configured()) if available() else 0


def check() -> None:
    """Raises if an instruction faulted since `reset`, or if a thread still has a configuration.

    Raises
    ------
    EmulatorError
        With the text of the first fault, or the number of threads.
    """
    if errors():
        raise EmulatorError(f"{errors()} faults; the first: {first_error()}")
    if threads_configured():
        raise EmulatorError(
            f"{threads_configured()} threads hold a tile configuration: a tilerelease is missing"
        )


def _request_permission() -> None:
    """Asks Linux to let this process use tiles, on a machine that has them."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    if libc.syscall(*map(ctypes.c_long, arguments)):
        raise EmulatorError(f"Linux denies tile data: {os.strerror(ctypes.get_errno())}")


@contextmanager
def running() -> Iterator[ModuleType]:
    """Runs a block of code under the emulator, and calls `check` at its end.

    On a machine with AMX it asks for permission to use tiles, and checks nothing.
    """
    if install():
        reset()
    elif _cpu_has_amx():
        _request_permission()
    yield sys.modules[__name__]
    if active():
        check()
