"""Side by side: independent kernels that leave threads idle run in one parallel region.

Before

    lv = R.call_tir(tvm_hybrid_matmul, (x, const_w), out_ty=R.Tensor((1, 256)))
    lv1 = R.call_tir(tvm_hybrid_matmul1, (y, const_w1), out_ty=R.Tensor((1, 128)))

After

    both = R.call_tir(tvm_hybrid_side_by_side, (x, const_w, y, const_w1),
                      out_ty=[R.Tensor((1, 256)), R.Tensor((1, 128))])
    lv = both[0]
    lv1 = both[1]

Candidates are kernels at equal depth, which is the number of kernels on the longest path to a
kernel: no two of them depend on each other. A kernel that keeps all threads busy is not merged. For
the others an estimate decides (tir_schedules/assembled/side_by_side.py), and `explain` shows it.
The pass works on finished kernels, so every part has its own configuration and tuning record.
Constants are packed by then: kernels are not merged if a part would read them in another order.
"""

from __future__ import annotations

import functools
import graphlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from tvm import IRModule, relax, tirx

from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.functions import KERNEL, REGION, named_pass, region_of
from relay_passes.ir.graph import DataflowGraph, op_name, static_tensor, variables
from tir_schedules.assembled import side_by_side
from tir_schedules.assembled.side_by_side import MOST_PARTS, Estimate, Piece
from tir_schedules.assembled.task_parts import parallel_tasks, threads_for
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.cost.amx_cost import why_vectors
from tir_schedules.cost.parallel import MEASURED_THREADS

from .lower_regions import KernelPass, build_kernel

NAME = "side_by_side"


@named_pass
def merge_side_by_side(mod: IRModule, machine: Machine, decisions: DecisionLog) -> IRModule:
    """The pass; it must run after `lower_regions`, and does nothing for a single thread.

    Parameters
    ----------
    machine : Machine
        The machine whose threads are to be kept busy.
    decisions : list of Decision
        The decisions of `lower_regions`; merged kernels share one decision.
    """
    return _Merger(mod, machine, decisions).rewritten() if machine.threads > 1 else mod


@dataclass(frozen=True)
class _Candidate:
    """A call of a kernel that leaves threads idle."""

    position: int
    function: relax.GlobalVar
    region: Region
    piece: Piece


class _Merger(KernelPass):
    """Merges the calls of one module."""

    def __init__(self, mod: IRModule, machine: Machine, decisions: DecisionLog) -> None:
        super().__init__(mod, machine, decisions)
        # The configurations that constants are packed for; decisions change during the pass.
        self.configs = {each.function: each.config for each in decisions if each.taken}
        self.described = functools.cache(self.describe)

    def block(self, block: relax.DataflowBlock) -> list[relax.Binding] | None:
        """The block with one call for every group that pays; None if none does."""
        graph = DataflowGraph(block)
        groups: list[tuple[list[_Candidate], Estimate]] = []
        for candidates in self.levels(graph):
            found = side_by_side.estimate([each.piece for each in candidates], self.machine)
            if found.pays and self.machine.threads > MEASURED_THREADS:
                found = self.estimated_again(candidates, found)
            if not found.pays:
                self.note_apart(graph, candidates, str(found))
            elif not all(
                self.reads(each, self.built(each, threads_for(found.shares, number))[1])
                for number, each in enumerate(candidates)
            ):
                self.note_apart(graph, candidates, "weights are packed for other tiles")
            else:
                groups.append((candidates, found))
        if not groups:
            return None
        merged = {group[0].position: self.bindings(graph, group, how) for group, how in groups}
        units = list(range(len(graph.bindings)))
        for group, _ in groups:
            for candidate in group:
                units[candidate.position] = group[0].position
        order = _ordered(graph, units)
        return [each for unit in order for each in merged.get(unit, [graph.bindings[unit]])]

    def estimated_again(self, group: Sequence[_Candidate], found: Estimate) -> Estimate:
        """Estimates a group again, with kernels built for their shares of the threads."""
        alone, parts = [], []
        for number, candidate in enumerate(group):
            region, threads = candidate.region, threads_for(found.shares, number)
            template = template_for(region.op)
            config = template.default_config(region, self.machine)
            tasks = candidate.piece.tasks
            alone.append(side_by_side.shared_us(region, config, self.machine, tasks))
            part, config = self.for_threads(region, threads)
            tasks, machine = parallel_tasks(part), replace(self.machine, threads=threads)
            parts.append(side_by_side.shared_us(region, config, machine, min(tasks, threads)))
        return side_by_side.with_times(found, alone, parts)

    def levels(self, graph: DataflowGraph) -> list[list[_Candidate]]:
        """Candidates by depth, two or more at each depth, in order of their positions."""
        depth: dict[relax.Var, int] = {}
        found: dict[int, list[_Candidate]] = {}
        for position, binding in enumerate(graph.bindings):
            value = graph.value(position)
            level = max((depth.get(var, 0) for var in variables(value)), default=0)
            if op_name(value) == "relax.call_tir":
                level += 1
                candidate = self.candidate(graph, position)
                if candidate is not None:
                    found.setdefault(level, []).append(candidate)
            depth[binding.var] = level
        return [
            level[start : start + MOST_PARTS]
            for level in found.values()
            for start in range(0, len(level) - 1, MOST_PARTS)
        ]

    def candidate(self, graph: DataflowGraph, position: int) -> _Candidate | None:
        """The candidate at a position; None if it leaves no thread idle or is not our kernel."""
        gvar = graph.value(position).args[0]
        described = self.described(gvar)
        if described is None or static_tensor(graph.bindings[position].var) is None:
            return None
        return _Candidate(position, gvar, *described)

    def describe(self, gvar: relax.GlobalVar) -> tuple[Region, Piece] | None:
        """A kernel's region and piece; None if it is not ours or leaves no thread idle."""
        function = self.mod[gvar]
        if not isinstance(function, tirx.PrimFunc) or REGION not in (function.attrs or {}):
            return None
        region = region_of(function)
        if region.is_dynamic:  # the number of tasks is known only at run time
            return None
        tasks, threads = side_by_side.tasks_of(function), self.machine.threads
        if tasks >= threads:
            return None
        most = 1
        if threads > MEASURED_THREADS:
            most = min(parallel_tasks(self.for_threads(region, threads)[0]), threads)
        return region, side_by_side.piece_of(region, tasks, self.machine, most)

    def built(self, candidate: _Candidate, threads: int) -> tuple[tirx.PrimFunc, Config | None]:
        """A candidate's kernel for some threads, and its configuration if that changes."""
        if candidate.piece.tasks == threads == 1:
            return self.mod[candidate.function], None
        return self.for_threads(candidate.region, threads)

    def reads(self, candidate: _Candidate, config: Config | None) -> bool:
        """Whether a configuration packs constants in the way in which they are packed."""
        region = candidate.region
        template = template_for(region.op)
        if config is None or template.packing is None:
            return True
        used = self.configs[str(candidate.function.name_hint)]
        packed_for = msgspec.convert(used, template.config_type)
        if packed_for == config:
            return True
        rng, isa = np.random.default_rng(0), self.machine.isa
        for index, tensor in enumerate(region.inputs):
            if tensor.constant:
                array = rng.integers(0, 100, tensor.shape).astype(tensor.dtype)
                pair = (
                    template.packed_input(region, each, isa, index) for each in (packed_for, config)
                )
                one, other = (array if each is None else each.pack(array) for each in pair)
                if one.shape != other.shape or one.tobytes() != other.tobytes():
                    return False
        return True

    def for_threads(self, region: Region, threads: int) -> tuple[tirx.PrimFunc, Config]:
        """A region's kernel for threads that are available anyway, so that they cost nothing.

        If the kernel cannot be a part of another one on several threads, it is built for one.
        """
        machine = replace(self.machine, threads=threads)
        if threads > 1:
            machine = machine.with_numbers(fork_us=0)
        config = template_for(region.op).default_config(region, machine)
        function = build_kernel(region, config, machine)
        if threads > 1 and parallel_tasks(function) == 1:
            return self.for_threads(region, 1)
        return function, config

    def bindings(
        self, graph: DataflowGraph, group: Sequence[_Candidate], how: Estimate
    ) -> list[relax.Binding]:
        """The bindings that replace a group: one call, and its results one by one.

        One decision replaces the decisions of the group.
        """
        kernels = [self.built(each, threads_for(how.shares, i)) for i, each in enumerate(group)]
        functions, configs = zip(*kernels, strict=True)
        kernel = side_by_side.combine(functions, how.shares)
        names = " | ".join(str(function.attrs[KERNEL]) for function in functions)
        kernel = kernel.without_attr(REGION).with_attr(KERNEL, names)
        gvar = self.builder.add_func(kernel, f"tvm_hybrid_{NAME}")
        results = [graph.bindings[candidate.position].var for candidate in group]
        arguments = [
            argument
            for candidate in group
            for argument in graph.value(candidate.position).args[1].fields
        ]
        call = relax.call_tir(gvar, arguments, out_ty=[result.ty for result in results])
        found = []
        for candidate, result, config in zip(group, results, configs, strict=True):
            index = self.decided(result, candidate.function)
            if index is None:
                continue
            decision = self.decisions.pop(index)
            if config is not None:
                alone = replace(self.machine, threads=1)
                decision = msgspec.structs.replace(
                    decision,
                    config=msgspec.to_builtins(config),
                    source="default",
                    on_vectors=why_vectors(candidate.region, config, alone),
                )
            found.append(decision)
        shares = [{"threads": share.threads, "kernels": share.kernels} for share in how.shares]
        vectors = [decision.on_vectors for decision in found if decision.on_vectors]
        self.decisions.append(
            Decision(
                node=", ".join(decision.node for decision in found),
                op=f"{NAME} ({', '.join(decision.op for decision in found)})",
                taken=True,
                function=str(gvar.name_hint),
                kernel=names,
                config={"shares": shares, "parts": [decision.config for decision in found]},
                source=", ".join(dict.fromkeys(decision.source for decision in found)),
                reason=f"template {NAME}: {len(group)} kernels that leave threads idle, {how}",
                on_vectors="; ".join(dict.fromkeys(vectors)),
                flops=sum(decision.flops for decision in found),
                workload=" | ".join(decision.workload for decision in found),
            )
        )
        return self.results(call, NAME, results)

    def note_apart(self, graph: DataflowGraph, group: Sequence[_Candidate], how: str) -> None:
        """Adds to the reasons of a group why its kernels run one after the other."""
        why = f"not side by side with {len(group) - 1} more: {how}"
        for candidate in group:
            self.note(graph.bindings[candidate.position].var, candidate.function, why)


def _ordered(graph: DataflowGraph, units: Sequence[int]) -> list[int]:
    """Units reordered, with few changes, so that every value is defined before it is used.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    units : sequence of int
        For every binding its unit, named by the position of the unit's first binding.
    """
    sorter = graphlib.TopologicalSorter[int]()
    for position, unit in enumerate(units):
        places = (graph.position.get(var) for var in variables(graph.value(position)))
        sorter.add(unit, *(units[made] for made in places if made is not None))
    sorter.prepare()
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        for unit in sorter.get_ready():
            heapq.heappush(ready, unit)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order
