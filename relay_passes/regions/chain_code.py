"""Decides how long chains of dynamic rows may be, so that they copy little code.

A kernel is built once for all layers that are alike. A part of a chain is code of that chain: if
the part is a kernel elsewhere, or belongs to another chain, too, its code is in the program twice.

    layers      A B C | A B C | A B D
    kernels     A, B, C, D                  4 parts of code, 9 calls
    chains      A+B+C, A+B+D                6 parts, 3 calls
    shorter     A+B+C, A+B, D               6 parts, 4 calls
    shorter     A+B, C, D                   4 parts, 6 calls

Code for any number of rows is long. First all chains are as long as they pay. While they add too
much code, the chains are shortened whose calls cost the most code each. Kernels of static rows are
seldom alike, and shorter: their chains stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from relay_passes.ir.graph import op_name, region_tensor
from relay_passes.ir.traits import RESHAPES
from tir_schedules.core.region import Region
from tir_schedules.core.region_numbers import region_form

from .merge_regions import Merge, RegionGraph

MOST_GROWTH = 0.07
"""How much longer the estimated code of all kernels may be."""

# Lines of LLVM IR of kernels for any number of rows or images on AVX-512: MiniLM, MobileViT and
# text detection of the corpus of compile times.
PART_LINES = 1250  # a product or a normalisation: 850 to 2300
LINES = {"attention": 4500, "conv2d": 2000, "depthwise_conv2d": 1400, "depthwise_pointwise": 3500}
KERNEL_LINES = 110  # checks of arguments
OTHER_LINES = 200  # of an operator in no region


@dataclass
class _Group:
    """Chains that are alike.

    Attributes
    ----------
    chains : list of int
        Their numbers.
    forms : list of str
        The forms of the regions of their beginnings, the shortest first.
    saved : list of int
        Calls that all chains of the group save with no, one, two, ... beginnings.
    inside : list of set of int
        Positions of the calls in the chains of the group, for each beginning.
    length : int
        How many beginnings are allowed; the chains have the last one of these.
    """

    chains: list[int]
    forms: list[str]
    saved: list[int]
    inside: list[set[int]]
    length: int


def lengths_worth(graph: RegionGraph, chains: Sequence[Sequence[Merge]]) -> list[int]:
    """How many of its beginnings each chain may have; 0 if it must not be a chain.

    Parameters
    ----------
    graph : RegionGraph
        The block.
    chains : sequence of sequence of Merge
        The beginnings of each chain that pay, the shortest first.
    """
    lengths = [len(ways) for ways in chains]
    dynamic = [number for number, ways in enumerate(chains) if ways[-1].region.is_open]
    if dynamic:
        program = _Program(graph, chains, dynamic)
        program.shorten()
        for group in program.groups:
            for number in group.chains:
                lengths[number] = group.length
    return lengths


_Changes = Sequence[tuple[_Group, int]]


class _Program:
    """The kernels of a block, some of them chains."""

    def __init__(
        self, graph: RegionGraph, chains: Sequence[Sequence[Merge]], dynamic: Sequence[int]
    ) -> None:
        static = {at for ways in chains if not ways[-1].region.is_open for at in ways[-1].members}
        self.forms = {
            at: region_form(region) for at, region in graph.regions.items() if at not in static
        }
        self.lines = {form: lines_of(graph.regions[at]) for at, form in self.forms.items()}
        self.other_lines = OTHER_LINES * len(
            {
                (op_name(graph.value(at)), region_tensor(binding.var))
                for at, binding in enumerate(graph.bindings)
                if at not in graph.regions and op_name(graph.value(at)) not in (None, *RESHAPES)
            }
        )
        groups: dict[tuple[str, ...], list[int]] = {}
        for number in dynamic:
            forms = tuple(region_form(merge.region) for merge in chains[number])
            self.lines |= zip(forms, [lines_of(m.region) for m in chains[number]], strict=True)
            groups.setdefault(forms, []).append(number)
        self.groups = [
            _Group(
                alike,
                list(forms),
                [0, *(len(alike) * (len(m.region.parts) - 1) for m in chains[alike[0]])],
                [
                    {at for number in alike for at in chains[number][way].members}
                    for way in range(len(forms))
                ],
                len(forms),
            )
            for forms, alike in groups.items()
        ]

    def code(self) -> int:
        """Lines of all kernels; each form is built once."""
        chosen = [group for group in self.groups if group.length]
        inside: set[int] = set().union(*(group.inside[group.length - 1] for group in chosen))
        forms = {form for at, form in self.forms.items() if at not in inside}
        forms |= {group.forms[group.length - 1] for group in chosen}
        return self.other_lines + sum(map(self.lines.__getitem__, forms))

    def shorten(self) -> None:
        """Makes chains shorter until they add little code."""
        most = self.code_with([(group, 0) for group in self.groups]) * (1 + MOST_GROWTH)
        while (now := self.code()) > most:  # without chains it is not
            _take(max(self.shorter(), key=lambda changes: self.lines_a_call(changes, now)))

    def code_with(self, changes: _Changes) -> int:
        """Lines of all kernels if some groups have other lengths; they keep those they have."""
        before = [(group, group.length) for group, _ in changes]
        _take(changes)
        found = self.code()
        _take(before)
        return found

    def lines_a_call(self, changes: _Changes, now: int) -> float:
        """Lines that each call more removes, where there are so many now."""
        calls = sum(group.saved[group.length] - group.saved[length] for group, length in changes)
        return (now - self.code_with(changes)) / calls

    def shorter(self) -> Iterator[_Changes]:
        """One group without its last parts, or all groups without a form of a part."""
        chosen = [group for group in self.groups if group.length]
        for group in chosen:
            yield from ([(group, length)] for length in range(group.length))
        for form in sorted(set().union(*(self.parts(group, group.length) for group in chosen))):
            with_form = [group for group in chosen if form in self.parts(group, group.length)]
            if len(with_form) > 1:
                yield [(group, self.length_without(form, group)) for group in with_form]

    def parts(self, group: _Group, length: int) -> set[str]:
        """Forms of the parts of a group's chains."""
        return {self.forms[at] for at in group.inside[length - 1] if at in self.forms}

    def length_without(self, form: str, group: _Group) -> int:
        """The most beginnings of a group that have no part of a form."""
        lengths = range(group.length, 0, -1)
        return next((length for length in lengths if form not in self.parts(group, length)), 0)


def _take(changes: _Changes) -> None:
    for group, length in changes:
        group.length = length


def lines_of(region: Region) -> int:
    """About how many lines of LLVM IR a region's kernel has."""
    body = LINES.get(region.op, PART_LINES * max(1, len(region.parts)))
    return body + KERNEL_LINES
