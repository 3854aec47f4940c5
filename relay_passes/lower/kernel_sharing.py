"""Kernels that differ in numbers only are one kernel; names that two programs can share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.errors import TvmHybridError
from microkernels.base.tvm_compat.relax import set_type
from microkernels.machines.machine import Machine
from microkernels.vector.placeholders import Trace, Values
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.functions import REGION, with_args
from relay_passes.ir.graph import is_call, op_name
from relay_passes.ir.rewrite import with_values
from tir_schedules.assembled.side_by_side import tasks_of
from tir_schedules.core.config import Config
from tir_schedules.core.kernel_numbers import (
    different_columns,
    filled,
    numbers_as_parameter,
    numbers_of,
    without_numbers,
)
from tir_schedules.core.region import Region, region_form, region_numbers, traced

# Kernel families: regions that differ in numbers only get one kernel, which is built once.
#
# A static quantised network of 64 layers has 450 regions, but ten kernels that differ in more than
# scales and zero points. To build each, only to find out that, takes seconds. So one of the regions
# is built twice: as it is, and with placeholders for the numbers that differ. The second kernel
# tells what numbers the kernels of the others would have, and under which conditions they are the
# same otherwise. Where a condition fails, a region's own kernel is built.


Build = Callable[[Region, Config], tirx.PrimFunc]
Numbers = tuple[np.uint32, ...]
MOST_VAIN = 3
"""Kernels with placeholders that fit no other region, before all others are built as they are."""


@dataclass
class Family:
    """Regions with one kernel.

    Attributes
    ----------
    op : str
        Of the regions.
    arguments : int
        What the kernel reads, before its result.
    kernel : PrimFunc
        That of the first.
    members : dict
        The key and the configuration of each region: `numbers_of` its kernel; empty for one alone.
    """

    op: str
    arguments: int
    kernel: tirx.PrimFunc
    members: dict[tuple[str, Config], Numbers]


class Families:
    """Builds the kernels of a module's regions.

    Parameters
    ----------
    machine : Machine
        Whom they are built for.
    build : callable
        (region, configuration) -> its finished kernel.
    emit : callable
        (region, configuration) -> the kernel as the template makes it; the region may have
        placeholders.
    alone : collection of str
        Keys of regions whose kernels are changed later, each by itself.
    """

    def __init__(
        self, machine: Machine, build: Build, emit: Build, alone: Collection[str] = ()
    ) -> None:
        self.machine, self.build, self.emit, self.alone = machine, build, emit, alone

    def __call__(self, regions: Sequence[tuple[Region, Config]]) -> list[Family]:
        """One family for each kernel, in order of their first regions."""
        groups: dict[tuple[str, Config], dict[str, Region]] = {}
        for region, config in regions:
            form = region.key if region.key in self.alone else region_form(region)
            groups.setdefault((form, config), {}).setdefault(region.key, region)
        found = [
            family
            for (_, config), group in groups.items()
            for family in self._families(list(group.values()), config)
        ]
        return _united(found, self.alone)

    def _families(self, regions: list[Region], config: Config) -> list[Family]:
        """The families of regions of one form."""
        found: list[Family] = []
        vain = 0
        while regions:
            first, *others = regions
            kernel = self.build(first, config)
            family = Family(first.op, _arguments(first), kernel, {(first.key, config): ()})
            found.append(family)
            numbers = None
            if others and vain < MOST_VAIN and not self._is_idle(first, kernel):
                numbers = self._numbers(first, others, kernel, config)
            regions = []
            for other in others:
                own = None if numbers is None else numbers(region_numbers(other))
                if own is None:
                    regions.append(other)
                else:
                    family.members[other.key, config] = own
            if len(family.members) > 1:
                family.members[first.key, config] = numbers_of(kernel)
            else:
                vain += 1
        return found

    def _is_idle(self, region: Region, kernel: tirx.PrimFunc) -> bool:
        """Whether a kernel leaves threads idle, so that it may be merged with others."""
        threads = self.machine.threads
        return threads > 1 and not region.is_open and tasks_of(kernel) < threads

    def _numbers(
        self, region: Region, others: list[Region], kernel: tirx.PrimFunc, config: Config
    ) -> Callable[[Values], Numbers | None] | None:
        """Numbers of a region -> those of its kernel; None if that is another one. None for all, if
        the template cannot tell."""
        with_placeholders, trace = traced(region, others)
        try:
            emitted, numbers = filled(self.emit(with_placeholders, config), trace)
        except (TvmHybridError, TypeError):  # code that takes nothing but a number
            return None
        same = tvm_ffi.structural_equal(_bare(emitted), _bare(kernel))
        return _if_it_holds(trace, numbers) if same else None


def _if_it_holds(
    trace: Trace, numbers: Callable[[Values], Numbers]
) -> Callable[[Values], Numbers | None]:
    def found(values: Values) -> Numbers | None:
        if not trace.holds(values):
            return None
        try:
            return numbers(values)
        except OverflowError:
            return None

    return found


def _arguments(region: Region) -> int:
    return len(region.inputs) + len(region.operands)


def _bare(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel without attributes."""
    return tirx.PrimFunc(function.params, function.body, function.ret_type)


def _united(families: list[Family], alone: Collection[str]) -> list[Family]:
    """Families whose kernels differ in numbers only as one; others stay for `share_kernels`."""
    several = {family.op for family in families if len(family.members) > 1}
    found: list[Family] = []
    known: dict[int, list[tuple[tirx.PrimFunc, Family]]] = {}
    for family in families:
        if family.op not in several or any(key in alone for key, _ in family.members):
            found.append(family)
            continue
        form = without_numbers(plain(family.kernel))
        same = known.setdefault(tvm_ffi.structural_hash(form), [])
        for other, first in same:
            if tvm_ffi.structural_equal(form, other):
                first.members |= _numbered(family)
                break
        else:
            same.append((form, family))
            found.append(family)
            family.members = _numbered(family)
    return found


def _numbered(family: Family) -> dict[tuple[str, Config], Numbers]:
    if len(family.members) > 1:
        return family.members
    return dict.fromkeys(family.members, numbers_of(family.kernel))


CALLS = ("relax.call_tir", "relax.call_tir_inplace")
UNSHARED_ATTRS = (REGION, "global_symbol")  # they differ, and say nothing about the code


@dataclass(frozen=True)
class _Shared:
    """What takes a kernel's place.

    Attributes
    ----------
    gvar : GlobalVar
        The kernel that several share.
    numbers : ir.GenericConst or None
        What it reads in this one's place; None if they all have the same.
    """

    gvar: ir.GlobalVar
    numbers: ir.GenericConst | None


def share_kernels(decisions: DecisionLog) -> ir.transform.Pass:
    """Share: merges kernels that differ only in numbers; the numbers become an input.

    Before

        lv = R.call_tir(tvm_hybrid_conv2d, (x, const_w), ...)    # ... quantize(v, 0.0107, 0.0)
        lv1 = R.call_tir(tvm_hybrid_conv2d1, (lv, const_w1), ...)    # ... quantize(v, 0.0132, 0.0)

    After

        lv = R.call_tir(tvm_hybrid_conv2d_shared, (x, const_w, [0.0107]), ...)
        lv1 = R.call_tir(tvm_hybrid_conv2d_shared, (lv, const_w1, [0.0132]), ...)

    Layers of a quantised network often differ only in scales and zero points: ResNet-50 has 34
    kernels instead of 58. Constants that all merged kernels have in common stay in the code.
    Results stay the same, bit for bit.

    The pass; it comes when there are no more kernels to make. Decisions follow.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.share_kernels")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        arguments = _arguments_share(mod)
        builder = relax.BlockBuilder(mod)
        shared: dict[relax.Expr, _Shared] = {}
        for group in _alike(mod, arguments):
            shared |= _share(mod, builder, group, arguments[group[0]])
        if not shared:
            return mod
        for gvar, function in list(mod.functions_items()):
            if isinstance(function, relax.Function):
                builder.update_func(gvar, _with_calls(function, builder, shared))
        names = {str(old.name_hint): str(new.gvar.name_hint) for old, new in shared.items()}
        decisions[:] = [
            msgspec.structs.replace(decision, function=names[decision.function])
            if decision.function in names
            else decision
            for decision in decisions
        ]
        return relax.transform.DeadCodeElimination()(builder.get())

    return run


def _arguments_share(mod: IRModule) -> dict[ir.GlobalVar, int]:
    """How many arguments every kernel has that nothing but calls to TIR uses."""
    found: dict[ir.GlobalVar, int] = {}
    uses: dict[ir.GlobalVar, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, ir.GlobalVar):
            uses[expr] = uses.get(expr, 0) + 1
        if op_name(expr) in CALLS and isinstance(expr.args[1], relax.Tuple):
            gvar = expr.args[0]
            found[gvar] = len(expr.args[1].fields)
            calls[gvar] = calls.get(gvar, 0) + 1

    calls: dict[ir.GlobalVar, int] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return {gvar: count for gvar, count in found.items() if uses.get(gvar) == calls[gvar]}


def _alike(mod: IRModule, arguments: dict[ir.GlobalVar, int]) -> list[list[ir.GlobalVar]]:
    """Groups of kernels that differ only in their numbers, in order of their names."""
    groups: dict[int, list[tuple[tirx.PrimFunc, list[ir.GlobalVar]]]] = {}
    for gvar in sorted(arguments, key=lambda gvar: str(gvar.name_hint)):
        function = mod[gvar]
        if not isinstance(function, tirx.PrimFunc) or len(function.params) < arguments[gvar]:
            continue
        form = without_numbers(plain(function))
        same = groups.setdefault(tvm_ffi.structural_hash(form), [])
        for other, members in same:
            if tvm_ffi.structural_equal(form, other):
                members.append(gvar)
                break
        else:
            same.append((form, [gvar]))
    found = [members for same in groups.values() for _, members in same]
    return [members for members in found if len(members) > 1]


def plain(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel without what tells it from others that do the same."""
    for name in UNSHARED_ATTRS:
        function = function.without_attr(name)
    return function


def _share(
    mod: IRModule, builder: relax.BlockBuilder, group: list[ir.GlobalVar], place: int
) -> dict[relax.Expr, _Shared]:
    """One kernel for a group, and what each of them becomes."""
    moved, values = different_columns([numbers_of(mod[gvar]) for gvar in group])
    if not moved:
        return {gvar: _Shared(group[0], None) for gvar in group[1:]}
    kernel = numbers_as_parameter(plain(mod[group[0]]), moved, place)
    gvar = builder.add_func(kernel, f"{group[0].name_hint}_shared")
    return {old: _Shared(gvar, relax.const(own)) for old, own in zip(group, values, strict=True)}


def _with_calls(
    function: relax.Function, builder: relax.BlockBuilder, shared: dict[relax.Expr, _Shared]
) -> relax.Function:
    """A function that calls shared kernels."""

    def changed(binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_call(call, *CALLS) or call.args[0] not in shared:
            return None
        return builder.normalize(_call(call, shared[call.args[0]]))

    return with_values(function, changed)


def _call(call: relax.Call, shared: _Shared) -> relax.Call:
    arguments = list(call.args[1].fields)
    if shared.numbers is not None:
        arguments.append(shared.numbers)
    rest = call.args[2:]
    return with_args(call, [shared.gvar, relax.Tuple(arguments), *rest])


GLOBAL_SYMBOL = "global_symbol"


def rename_kernels(suffix: str, decisions: DecisionLog) -> ir.transform.Pass:
    """Rename kernels, so that two programs that were compiled from one model fit in one library.

    Before

        @T.prim_func
        def tvm_hybrid_matmul(...): ...
        gv = R.call_tir(cls.tvm_hybrid_matmul, (x, const_packed), ...)

    After, for the suffix "_avx512_vnni"

        @T.prim_func
        def tvm_hybrid_matmul_avx512_vnni(...): ...
        gv = R.call_tir(cls.tvm_hybrid_matmul_avx512_vnni, (x, const_packed), ...)

    The pass; it renames kernels in decisions too.

    It comes when there are no more kernels to make, and again when TVM has written functions that
    compute sizes. What has the suffix keeps its name.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.rename_kernels")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        renamed: dict[ir.GlobalVar, ir.GlobalVar] = {}
        for gvar, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc) and not gvar.name_hint.endswith(suffix):
                renamed[gvar] = ir.GlobalVar(gvar.name_hint + suffix)
                set_type(renamed[gvar], gvar.ty)
        names = {gvar.name_hint for gvar in renamed}
        decisions[:] = [
            msgspec.structs.replace(decision, function=decision.function + suffix)
            if decision.function in names
            else decision
            for decision in decisions
        ]
        functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        for gvar, function in mod.functions_items():
            if gvar in renamed:
                attrs = function.attrs
                if attrs and GLOBAL_SYMBOL in attrs:
                    symbol = str(attrs[GLOBAL_SYMBOL]) + suffix
                    function = function.with_attr(GLOBAL_SYMBOL, symbol)
                functions[renamed[gvar]] = function
            elif isinstance(function, relax.Function):
                functions[gvar] = _Renamer(renamed).visit_expr(function)
            else:
                functions[gvar] = function
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Puts other global variables in the place of those named."""

    def __init__(self, renamed: dict[ir.GlobalVar, ir.GlobalVar]) -> None:
        super().__init__()
        self._renamed = renamed

    def visit_global_var_(self, op: ir.GlobalVar) -> ir.GlobalVar:
        return self._renamed.get(op, op)
