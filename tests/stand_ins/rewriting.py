"""Replaces intrinsics that a CPU lacks by their meanings, in lowered kernels.

Before, for a CPU without AVX-512 VNNI

    c[...] = T.call_llvm_pure_intrin("int32x16", "llvm.x86.avx512.vpdpbusd.512", c[...], a, b)

After

    T.attr(0, "pragma_import_llvm", "define ... @stand_in.llvm.x86.avx512.vpdpbusd.512 ...")
    c[...] = T.call_pure_extern("int32x16", "stand_in.llvm.x86.avx512.vpdpbusd.512", c[...], a, b)

LLVM IR that kernels import calls these functions too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import Target, codegen

from microkernels.base.tvm_compat.tir import IMPORT_LLVM

from .llvm_ir import PREFIX
from .meanings import MEANINGS

_INTRINSICS = ("tirx.call_llvm_pure_intrin", "tirx.call_llvm_intrin")
_EXTERN = ir.Op.get("tirx.call_pure_extern")
_NAME = re.compile(r"@(llvm\.x86\.[\w.]+)")


# AVX2's and AMX's intrinsics stay: every CPU has AVX2, and an emulator executes AMX.
_REPLACED = "llvm.x86.avx512"


def lacking(names: Iterable[str], present: frozenset[str]) -> list[str]:
    """The intrinsics that a CPU with these features cannot execute.

    Raises
    ------
    NotImplementedError
        If an intrinsic has no meaning; LLVM would end the process.
    """
    found = [name for name in names if name.startswith(_REPLACED)]
    for name in found:
        if name not in MEANINGS:
            raise NotImplementedError(
                f"{name} has no stand-in: add its meaning to tests/stand_ins/meanings.py"
            )
    return [name for name in found if not present.issuperset(MEANINGS[name].features)]


def with_meanings(mod: IRModule, target: Target, present: frozenset[str]) -> IRModule:
    """Adds the meaning of every intrinsic that a CPU lacks, and calls it.

    Parameters
    ----------
    mod : tvm.IRModule
        Kernels at the start of code generation.
    target : tvm.target.Target
        The target to compile for.
    present : frozenset of str
        The CPU's LLVM features.
    """
    functions = {
        gvar: _rewritten(function, target, present)
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _rewritten(function: tirx.PrimFunc, target: Target, present: frozenset[str]) -> tirx.PrimFunc:
    used: set[str] = set()

    def call_of(call: ir.Call) -> ir.Call:
        if str(getattr(call.op, "name", "")) not in _INTRINSICS:
            return call
        name = str(codegen.llvm_get_intrinsic_name(int(call.args[0])))
        if not lacking([name], present):
            return call
        used.add(name)
        return ir.Call(_EXTERN, [ir.StringImm(PREFIX + name), *call.args[1:]], ret_ty=call.ty)

    def import_of(statement: tirx.AttrStmt) -> tirx.AttrStmt:
        if str(statement.attr_key) != IMPORT_LLVM:
            return statement
        text = ir.StringImm(imported_text(str(statement.value.value), present))
        return tirx.AttrStmt(statement.node, IMPORT_LLVM, text, statement.body)

    body = tvm_ffi.structural_map(function.body, [(ir.Call, call_of), (tirx.AttrStmt, import_of)])
    for name in sorted(used):
        body = tirx.AttrStmt(0, IMPORT_LLVM, ir.StringImm(MEANINGS[name].text), body)
    changed = tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)
    return changed.with_attr("target", target)


def imported_text(text: str, present: frozenset[str]) -> str:
    """Rewrites LLVM IR to call meanings instead of intrinsics that a CPU lacks."""
    names = lacking(dict.fromkeys(_NAME.findall(text)), present)
    for name in names:
        intrinsic = re.escape(f"@{name}")
        text = re.sub(rf"^declare[^@]*{intrinsic}\([^)]*\)[^\n]*$", "", text, flags=re.MULTILINE)
        text = re.sub(rf"{intrinsic}\(", f"@{PREFIX}{name}(", text)
    return _once("".join(MEANINGS[name].text for name in names)) + text


def _once(text: str) -> str:
    """LLVM IR with each helper defined once, although several meanings contain it."""
    parts = re.split(r"^(?=define|declare)", text, flags=re.MULTILINE)
    return "".join(dict.fromkeys(parts))
