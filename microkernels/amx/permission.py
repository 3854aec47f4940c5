"""Permission to use AMX tiles, which Linux gives to a process that asks for it.

Without permission the first tile instruction kills the process. Generated code asks for permission
itself, because an exported library runs without this package: `emit_permission_check` puts a check
in front of a PrimFunc. Once permission is given, the check costs a load and a branch.
`tile_permission` asks for this process from Python.

An emulator may execute the tile instructions instead. It counts as permission: a function
`int amx_emulator_active(void)` that is visible to the whole process and returns nonzero.

Source: Linux, Documentation/arch/x86/xstate.rst; errors from arch/x86/kernel/fpu/xstate.c.
"""

from __future__ import annotations

import ctypes
import errno
import functools
from dataclasses import dataclass
from pathlib import Path

import tvm.tirx.script.builder.ir as I
from tvm.tirx import Expr

from microkernels.base.host_cpu import host_flags
from microkernels.base.tvm_compat.tir import llvm_functions

# In LLVM's spelling. All CPUs with AMX have the first ones.
AMX_FEATURES = ("amx-tile", "amx-int8", "amx-bf16")
AMX_FP16 = "amx-fp16"
ALL_AMX_FEATURES = (*AMX_FEATURES, AMX_FP16)

ARCH_PRCTL = 158  # number of the system call on x86-64
REQUEST = 0x1023  # ARCH_REQ_XCOMP_PERM
TILE_DATA = 18  # XFEATURE_XTILEDATA
EMULATOR = "amx_emulator_active"
_PERMISSION = "tvm_hybrid_amx_permission"

# Returns 0 if tiles may be used, else the errno of Linux. The emulator is looked up each time: it
# may be loaded after this code, and its answer, unlike that of Linux, can change.
PERMISSION_LLVM_IR = Path(__file__).with_name("permission.ll").read_text()

EMULATED = "tvm_hybrid_amx_emulated"
# Returns whether the emulator is active.
EMULATED_LLVM_IR = Path(__file__).with_name("emulated.ll").read_text()

ADVICE = "run it where Linux grants them, or compile the model for a CPU without AMX"
# Why Linux refuses, by errno; None stands for every other errno.
REFUSALS: dict[int | None, str] = {
    errno.EOPNOTSUPP: "this CPU, its hypervisor or the settings of Linux have no AMX tile data",
    errno.ENOSPC: "an alternate signal stack of this process is too small for tile data "
    "(sigaltstack, at least getauxval(AT_MINSIGSTKSZ) bytes)",
    errno.EINVAL: "it is older than version 5.16 and knows no AMX",
    errno.ENOSYS: "a sandbox intercepts the system call arch_prctl",
    None: "a sandbox or the security settings forbid the system call arch_prctl",
}


def emit_permission_check() -> None:
    """Emits an assertion that this process may use tiles.

    It belongs at the start of a PrimFunc, outside of its parallel loops. Without permission, a call
    of the function raises a RuntimeError that says why, before any tile instruction.
    """
    with llvm_functions(PERMISSION_LLVM_IR):
        emit_refusals(I.bind(I.call_extern("int32", _PERMISSION)))


def emit_refusals(code: Expr) -> None:
    """Emits assertions that `code`, an errno of Linux, is zero."""
    with I.If(code != 0), I.Then():
        for number, reason in REFUSALS.items():
            holds = False if number is None else code != number
            message = f"this code needs AMX tiles, and Linux denies them: {reason}; {ADVICE}"
            with I.Assert(holds, message):
                pass


@dataclass(frozen=True)
class Permission:
    """Whether this process may use tiles.

    Attributes
    ----------
    state : {"granted", "emulated", "denied", "absent"}
        "absent": the CPU has no AMX. "denied": it has, but Linux does not let this process use it.
    errno : int
        The errno of Linux; 0 unless it denied permission.
    """

    state: str
    errno: int = 0

    @property
    def usable(self) -> bool:
        """Whether tile instructions may be executed."""
        return self.state in ("granted", "emulated")

    @property
    def reason(self) -> str:
        """What the state means, for a report or an error message."""
        if self.state == "denied":
            return (
                f"Linux denies AMX tile data to this process ({errno.errorcode.get(self.errno)}): "
                f"{REFUSALS.get(self.errno, REFUSALS[None])}"
            )
        return {
            "granted": "Linux has granted AMX tile data to this process",
            "emulated": "AMX is emulated in this process",
            "absent": "this CPU has no AMX",
        }[self.state]


def tile_permission() -> Permission:
    """Asks for permission to use tiles; Linux is asked once per process."""
    if _emulator_is_active():
        return Permission("emulated")
    code = _ask_linux()
    if code == 0:
        return Permission("granted")
    return Permission("denied", code) if "amx_tile" in host_flags() else Permission("absent")


def _emulator_is_active() -> bool:
    """Whether the process has the emulator's function, and it returns nonzero."""
    try:
        return bool(getattr(_process(), EMULATOR)())
    except AttributeError:
        return False


@functools.cache
def _process() -> ctypes.CDLL:
    """Gives access to every symbol that is visible to the whole process, now or later."""
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _ask_linux() -> int:
    """Asks Linux for tiles; returns 0, or the errno."""
    syscall = _process().syscall
    numbers = (ctypes.c_long(number) for number in (ARCH_PRCTL, REQUEST, TILE_DATA))
    return 0 if syscall(*numbers) == 0 else ctypes.get_errno()
