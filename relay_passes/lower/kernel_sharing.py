"""Shares kernels that differ only in numbers; renames kernels to fit two programs in a library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
import tvm_ffi
from tvm import IRModule, ir, relax, tirx

from microkernels.base.errors import TvmHybridError
from microkernels.base.tvm_compat.relax import set_type, structural_key
from microkernels.machines.machine import Machine
from microkernels.vector.placeholders import Values
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.functions import REGION, named_pass, with_args, with_renamed
from relay_passes.ir.graph import is_call, nodes_in, op_name
from relay_passes.ir.rewrite import is_kernel, is_relax, map_functions, map_values
from tir_schedules.assembled.side_by_side import tasks_of
from tir_schedules.core import kernel_numbers
from tir_schedules.core.config import Config
from tir_schedules.core.kernel_numbers import numbers_of
from tir_schedules.core.region import Region, region_form, region_numbers, traced

# Kernel families: regions that differ only in numbers get one kernel, which is built once.
#
# A static quantised network of 64 layers has 450 regions, but only ten kernels that differ in more
# than scales and zero points. Building each kernel, only to find that out, takes seconds. So one of
# the regions is built twice: as it is, and with placeholders for the numbers that differ. The
# second kernel determines the numbers in the kernels of the other regions, and the conditions under
# which these kernels are otherwise equal. If a condition fails, a region's own kernel is built.


Build = Callable[[Region, Config], tirx.PrimFunc]
Numbers = tuple[np.uint32, ...]
MOST_VAIN = 3
"""Kernels with placeholders that may fit no other region, before the others are built singly."""


@dataclass
class Family:
    """Regions that share one kernel.

    Attributes
    ----------
    op : str
        Operator of the regions.
    arguments : int
        Number of arguments that the kernel reads, before its result.
    kernel : PrimFunc
        The first region's kernel.
    members : dict
        Key and configuration of each region -> `numbers_of` its kernel; empty for a single region.
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
        The machine that kernels are built for.
    build : callable
        (region, configuration) -> its finished kernel.
    emit : callable
        (region, configuration) -> the kernel as the template builds it; the region may have
        placeholders.
    alone : collection of str
        Keys of regions whose kernels are changed later, each separately.
    """

    def __init__(
        self, machine: Machine, build: Build, emit: Build, alone: Collection[str] = ()
    ) -> None:
        self.machine, self.build, self.emit, self.alone = machine, build, emit, alone

    def __call__(self, regions: Sequence[tuple[Region, Config]]) -> list[Family]:
        """One family for each kernel, in order of the families' first regions."""
        groups: dict[tuple[str, Config], dict[str, Region]] = {}
        for region, config in regions:
            form = region.key if region.key in self.alone else region_form(region)
            groups.setdefault((form, config), {}).setdefault(region.key, region)
        found: list[Family] = []
        for (_, config), group in groups.items():
            vain, left = 0, list(group.values())
            while left:
                family, left = self._family(left, config, vain < MOST_VAIN)
                found.append(family)
                vain += len(family.members) == 1
        return _united(found, self.alone)

    def _family(
        self, regions: list[Region], config: Config, share: bool
    ) -> tuple[Family, list[Region]]:
        """The family of the first of `regions`, all of one form, and the regions outside it;
        without `share`, only the first is inside."""
        first, *others = regions
        kernel, threads = self.build(first, config), self.machine.threads
        arguments = len(first.inputs) + len(first.operands)
        family = Family(first.op, arguments, kernel, {(first.key, config): ()})
        # A kernel that leaves threads idle may be merged with others.
        idle = threads > 1 and not first.is_dynamic and tasks_of(kernel) < threads
        if not others or not share or idle:
            return family, others
        numbers, left = self._numbers(first, others, kernel, config), list[Region]()
        for other in others:
            own = None if numbers is None else numbers(region_numbers(other))
            if own is None:
                left.append(other)
            else:
                family.members[other.key, config] = own
        if len(family.members) > 1:
            family.members[first.key, config] = numbers_of(kernel)
        return family, left

    def _numbers(
        self, region: Region, others: list[Region], kernel: tirx.PrimFunc, config: Config
    ) -> Callable[[Values], Numbers | None] | None:
        """A function from a region's numbers to its kernel's numbers, or to None if that kernel
        differs; None if the template cannot tell."""
        with_placeholders, trace = traced(region, others)
        try:
            emitted, numbers = kernel_numbers.filled(self.emit(with_placeholders, config), trace)
        except (TvmHybridError, TypeError):  # template code that only accepts numbers
            return None

        def if_it_holds(values: Values) -> Numbers | None:
            try:
                return numbers(values) if trace.holds(values) else None
            except OverflowError:
                return None

        same = tvm_ffi.structural_equal(_bare(emitted), _bare(kernel))
        return if_it_holds if same else None


def _bare(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel without attributes."""
    return tirx.PrimFunc(function.params, function.body, function.ret_type)


def _united(families: list[Family], alone: Collection[str]) -> list[Family]:
    """Joins families whose kernels differ only in numbers; others are left to `share_kernels`."""
    several = {family.op for family in families if len(family.members) > 1}
    found: list[Family] = []
    forms: dict[Hashable, Family] = {}
    for family in families:
        if family.op not in several or any(key in alone for key, _ in family.members):
            found.append(family)
            continue
        if len(family.members) == 1:
            family.members = dict.fromkeys(family.members, numbers_of(family.kernel))
        first = forms.setdefault(_form(family.kernel), family)
        if first is family:
            found.append(family)
        else:
            first.members |= family.members
    return found


def _form(kernel: tirx.PrimFunc) -> Hashable:
    """A key that is equal for kernels that differ only in numbers."""
    return structural_key(kernel_numbers.without_numbers(plain(kernel)))


CALLS = ("relax.call_tir", "relax.call_tir_inplace")
UNSHARED_ATTRS = (REGION, "global_symbol")  # these differ although the code is equal


@dataclass(frozen=True)
class Shared:
    """The shared kernel that replaces a kernel.

    Attributes
    ----------
    gvar : GlobalVar
        The shared kernel.
    numbers : ir.GenericConst or None
        The numbers of the replaced kernel; None if all kernels have equal numbers.
    """

    gvar: ir.GlobalVar
    numbers: ir.GenericConst | None = None

    def arguments(self, own: Iterable[relax.Expr]) -> list[relax.Expr]:
        """The arguments of the shared kernel, for the arguments of the replaced one."""
        return [*own, *([] if self.numbers is None else [self.numbers])]


def shared(
    add: Callable[[tirx.PrimFunc, str], ir.GlobalVar],
    kernel: tirx.PrimFunc,
    name: str,
    rows: list[Numbers],
    place: int,
) -> list[Shared] | None:
    """Adds a kernel that reads its numbers from argument `place`; returns a Shared per row.

    None if all rows are equal.
    """
    moved, values = kernel_numbers.different_columns(rows)
    if not moved:
        return None
    reading = kernel_numbers.numbers_as_parameter(plain(kernel), moved, place)
    gvar = add(reading, f"{name}_shared")
    return [Shared(gvar, relax.const(own)) for own in values]


@named_pass
def share_kernels(mod: IRModule, decisions: DecisionLog) -> IRModule:
    """Share: merges kernels that differ only in numbers; the numbers become an input.

    Before

        lv = R.call_tir(tvm_hybrid_conv2d, (x, const_w), ...)    # ... quantize(v, 0.0107, 0.0)
        lv1 = R.call_tir(tvm_hybrid_conv2d1, (lv, const_w1), ...)    # ... quantize(v, 0.0132, 0.0)

    After

        lv = R.call_tir(tvm_hybrid_conv2d_shared, (x, const_w, [0.0107]), ...)
        lv1 = R.call_tir(tvm_hybrid_conv2d_shared, (lv, const_w1, [0.0132]), ...)

    Layers of a quantised network often differ only in scales and zero points: ResNet-50 has 34
    kernels instead of 58. Constants that all merged kernels have in common stay in the code.
    Results stay equal, bit for bit.

    It must run when all kernels are built. Decisions are updated.
    """
    arguments = _arguments(mod)
    groups: dict[Hashable, list[ir.GlobalVar]] = {}
    # Kernels of one form have parameters of equal types.
    types = {gvar: tvm_ffi.structural_hash(mod[gvar].ty, True) for gvar in arguments}
    alike = Counter(types.values())
    for gvar in sorted(arguments, key=lambda gvar: str(gvar.name_hint)):
        kernel = mod[gvar]
        if alike[types[gvar]] == 1:
            continue
        if is_kernel(kernel) and len(kernel.params) >= arguments[gvar]:
            groups.setdefault(_form(kernel), []).append(gvar)
    builder = relax.BlockBuilder(mod)
    taken: dict[relax.Expr, Shared] = {}
    for first, *others in groups.values():
        if others:
            group, name = [first, *others], str(first.name_hint)
            numbers = [numbers_of(mod[gvar]) for gvar in group]
            found = shared(builder.add_func, mod[first], name, numbers, arguments[first])
            if found is None:  # all kernels are equal
                group, found = others, [Shared(first)] * len(others)
            taken |= zip(group, found, strict=True)
    if not taken:
        return mod

    def changed(binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not is_call(call, *CALLS) or call.args[0] not in taken:
            return None
        new, rest = taken[call.args[0]], call.args[2:]
        given = relax.Tuple(new.arguments(call.args[1].fields))
        return builder.normalize(with_args(call, [new.gvar, given, *rest]))

    whole = map_values(builder.get(), changed)
    names = {str(old.name_hint): str(new.gvar.name_hint) for old, new in taken.items()}
    _rename(decisions, names)
    return relax.transform.DeadCodeElimination()(whole)


def _rename(decisions: DecisionLog, names: Mapping[str, str]) -> None:
    """Changes the names of kernels in decisions."""
    for index, decision in enumerate(decisions):
        if decision.function in names:
            name = names[decision.function]
            decisions[index] = msgspec.structs.replace(decision, function=name)


def _arguments(mod: IRModule) -> dict[ir.GlobalVar, int]:
    """The number of arguments of every kernel that is used only in calls of `CALLS`."""
    found: dict[ir.GlobalVar, int] = {}
    uses, calls = Counter[ir.GlobalVar](), Counter[ir.GlobalVar]()

    for expr in chain.from_iterable(map(nodes_in, filter(is_relax, mod.functions.values()))):
        if isinstance(expr, ir.GlobalVar):
            uses[expr] += 1
        if op_name(expr) in CALLS and isinstance(expr.args[1], relax.Tuple):
            found[expr.args[0]] = len(expr.args[1].fields)
            calls[expr.args[0]] += 1
    return {gvar: count for gvar, count in found.items() if uses[gvar] == calls[gvar]}


def plain(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel without attributes that distinguish it from kernels with equal code."""
    for name in UNSHARED_ATTRS:
        function = function.without_attr(name)
    return function


GLOBAL_SYMBOL = "global_symbol"


@named_pass
def rename_kernels(mod: IRModule, suffix: str, decisions: DecisionLog) -> IRModule:
    """Rename kernels, so that two programs compiled from one model fit in one library.

    Before

        @T.prim_func
        def tvm_hybrid_matmul(...): ...
        gv = R.call_tir(cls.tvm_hybrid_matmul, (x, const_packed), ...)

    After, for the suffix "_avx512_vnni"

        @T.prim_func
        def tvm_hybrid_matmul_avx512_vnni(...): ...
        gv = R.call_tir(cls.tvm_hybrid_matmul_avx512_vnni, (x, const_packed), ...)

    Kernels in decisions are renamed, too.

    It must run when all kernels are built, and again after TVM has written functions that compute
    sizes. Kernels that already have the suffix keep their names.
    """
    renamed: dict[relax.Expr, relax.Expr] = {}
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    names: dict[str, str] = {}
    for gvar, function in mod.functions_items():
        own = gvar
        if is_kernel(function) and not gvar.name_hint.endswith(suffix):
            own = renamed[gvar] = ir.GlobalVar(gvar.name_hint + suffix)
            names[str(gvar.name_hint)] = str(own.name_hint)
            set_type(own, gvar.ty)
            if GLOBAL_SYMBOL in (function.attrs or {}):
                symbol = str(function.attrs[GLOBAL_SYMBOL]) + suffix
                function = function.with_attr(GLOBAL_SYMBOL, symbol)
        functions[own] = function
    _rename(decisions, names)
    whole = IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return map_functions(whole, is_relax, lambda each: with_renamed(each, renamed))
