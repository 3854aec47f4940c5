"""The CPU check inside a module that TVM itself compiles and exports.

A library of our `Executable.export` checks the CPU when it is loaded (`library_loader`). TVM's
`export_library` has no place for such a check, so every entry of the module first calls a guard.
The guard is machine code for plain x86-64 that asks `cpuid`, and raises an error naming what the
CPU lacks. It needs only TVM's runtime. After the first success, a call costs a load and a branch.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import IRModule, ir, relax, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.amx import permission
from microkernels.base.tvm_compat.tir import NO_ALIAS, llvm_functions
from microkernels.vector.expressions import Expr
from relay_passes.ir.functions import is_region_function
from relay_passes.lower.native_code import EXTERNAL, SYSTEM_LIB_PREFIX, importing, system_lib_prefix
from relay_passes.vm.entries import guard_entries

from .cpu_features import FEATURES, CpuFeature

GUARD = "tvm_hybrid.guard"  # attribute of partitioned functions: a Guard as JSON
PREFIX = "tvm_hybrid_require_"
_PLAIN = {"kind": "llvm", "mcpu": "x86-64"}
_WORDS = {"eax": 0, "ebx": 1, "ecx": 2, "edx": 3}
_EXTENDED = 0x80000000  # first extended leaf; cpuid counts basic and extended leaves separately

# `tvm_hybrid_cpu_state` is the lower half of XCR0: which registers the operating system saves.
CPUID_LLVM_IR = Path(__file__).with_name("cpuid.ll").read_text()


class Guard(msgspec.Struct, frozen=True):
    """What a guard checks.

    Attributes
    ----------
    cpu : str
        The CPU that the code is compiled for; used in messages.
    features : tuple of str
        The features that the code needs, by their names in `cpu_features.FEATURES`; if empty, no
        guard is added.
    tiles : bool
        Whether the code needs AMX tiles; the guard then also asks Linux for permission.
    prefix : str or None
        Name prefix of functions in a system library, so that two such libraries can be linked
        together; None if the code is for no system library.
    """

    cpu: str
    features: tuple[str, ...]
    tiles: bool
    prefix: str | None = None

    @property
    def name(self) -> str:
        """The function's name, with a hash of what the guard checks."""
        asked = repr((self.cpu, [FEATURES[name] for name in self.features], self.tiles))
        return (self.prefix or "") + PREFIX + hashlib.sha256(asked.encode()).hexdigest()[:8]

    def code(self) -> Any:
        """The guard function as a module of machine code."""
        return _compiled(self.name, self)

    def within(self, mod: IRModule) -> Guard:
        """This guard with the prefix of a module for a system library, if the module has one."""
        return msgspec.structs.replace(self, prefix=system_lib_prefix(mod))


def with_guard(mod: IRModule, guard: Guard) -> IRModule:
    """Adds a guard call to the entries of a lowered module, and the guard to its imports."""
    if not guard.features:
        return mod
    guard = guard.within(mod)
    present = list(mod.attrs[EXTERNAL]) if mod.attrs and EXTERNAL in mod.attrs else []
    if not any(each.implements_function(guard.name) for each in present):
        mod = importing(mod, [guard.code()])
    return guard_entries(guard.name)(mod)


def with_announced_guard(mod: IRModule, guard: Guard) -> IRModule:
    """Adds a guard call to the entries of a partitioned module; `RunCodegen` adds the guard's code.

    The module can still be saved. A module without functions of ours is returned unchanged.
    """
    regions = {gvar: f for gvar, f in mod.functions_items() if is_region_function(f)}
    if not guard.features or not regions:
        return mod
    guard = guard.within(mod)
    text = msgspec.json.encode(guard).decode()
    updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
    for gvar, function in regions.items():
        updated.update_func(gvar, function.with_attr(GUARD, text))
    return guard_entries(guard.name)(updated)


def guards_of(functions: Iterable[relax.Function]) -> list[Any]:
    """The machine code of the guards in the attributes of functions, each guard once."""
    texts = dict.fromkeys(str(f.attrs[GUARD]) for f in functions if GUARD in f.attrs)
    return [msgspec.json.decode(text, type=Guard).code() for text in texts]


@functools.lru_cache(maxsize=64)
def _compiled(name: str, guard: Guard) -> Any:
    """Compiles a function without arguments that raises a RuntimeError if a feature is missing."""
    amx = permission.AMX_FEATURES
    # Newest first: if several features are missing, the message names the newest.
    asked = [FEATURES[each] for each in reversed(guard.features) if each not in amx]
    with IRBuilder() as builder, I.prim_func():
        I.func_name(name)
        I.func_attr({**NO_ALIAS, "global_symbol": name})
        emulated = any(feature.is_amx for feature in asked)
        # Under the emulator every AMX feature counts as present.
        emulator = permission.EMULATED_LLVM_IR if emulated else ""
        with llvm_functions(CPUID_LLVM_IR, emulator):
            unknown = I.call_extern("int32", "tvm_hybrid_cpu_known") == 0
            with I.If(unknown), I.Then():
                _assert_features(asked, guard.cpu)
                I.evaluate(I.call_extern("int32", "tvm_hybrid_cpu_remember"))
        if guard.tiles:  # asks Linux, not cpuid, whether AMX tiles may be used
            permission.emit_permission_check()
    mod = IRModule({name: builder.get()})
    if guard.prefix is not None:
        mod = mod.with_attr(SYSTEM_LIB_PREFIX, guard.prefix)
    # An own context: the caller's instruments, for example, are meant for the caller's module.
    with ir.transform.PassContext():
        return tvm.compile(mod, tvm.target.Target(_PLAIN)).mod


def _assert_features(features: list[CpuFeature], cpu: str) -> None:
    """Asserts for each feature that the CPU has it and the operating system saves its registers."""
    state = I.bind(I.call_extern("int32", "tvm_hybrid_cpu_state"))
    last = {start: _word(start, 0, "eax") for start in (0, _EXTENDED)}
    words: dict[tuple[int, int, str], Expr] = {}
    for feature in features:
        place = (feature.leaf, feature.subleaf, feature.register)
        if place not in words:
            words[place] = _word(*place)
        start = feature.leaf & _EXTENDED
        # Extended leaves are negative as signed numbers; a CPU without any may answer anything.
        listed = last[start] >= _signed(feature.leaf)
        if start:
            listed = tirx.all(last[start] < 0, listed)
        has = I.bitwise_and(words[place], _signed(1 << feature.bit)) != 0
        saved = I.bitwise_and(state, feature.state) == feature.state
        message = (
            f"this library was compiled by tvm_hybrid for {cpu} and needs {feature.name}, which "
            "this CPU lacks; run it on such a CPU, or compile the model for this one"
        )
        present = tirx.all(listed, has, saved)
        if feature.is_amx:
            present = tirx.any(I.bind(I.call_extern("int32", permission.EMULATED)) != 0, present)
        with I.Assert(present, message):
            pass


def _word(leaf: int, subleaf: int, register: str) -> Expr:
    """The value of one register after the instruction `cpuid`."""
    arguments = (_signed(leaf), subleaf, _WORDS[register])
    return I.bind(I.call_extern("int32", "tvm_hybrid_cpuid", *arguments))


def _signed(number: int) -> int:
    """The signed number with the bits of an unsigned 32-bit number."""
    return number - (1 << 32) if number >= 1 << 31 else number
