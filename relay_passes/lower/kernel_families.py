"""Kernel families: regions that differ in numbers only get one kernel, which is built once.

A static quantised network of 64 layers has 450 regions, but ten kernels that differ in more than
scales and zero points. To build each, only to find out that, takes seconds. So one of the regions
is built twice: as it is, and with placeholders for the numbers that differ. The second kernel tells
what numbers the kernels of the others would have, and under which conditions they are the same
otherwise. Where a condition fails, a region's own kernel is built.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import tirx

from microkernels.base.errors import TvmHybridError
from microkernels.machines.machine import Machine
from microkernels.vector.placeholders import Trace, Values
from tir_schedules.assembled.side_by_side import tasks_of
from tir_schedules.core.config import Config
from tir_schedules.core.kernel_numbers import filled, numbers_of, without_numbers
from tir_schedules.core.region import Region
from tir_schedules.core.region_numbers import region_form, region_numbers, traced

from .share_kernels import plain

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
