"""The program of attention for sizes that are known at run time only.

for each attention, or each that shares k and v with others            tasks of one parallel loop
    as `few` where there is one query, else as `many`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for
from microkernels.vector.expressions import Expr, bind, materialise
from microkernels.vector.memory import ADDRESS_LLVM_IR, PREFETCH_LLVM_IR, streaming_llvm_ir
from tir_schedules.attention.config import AttentionConfig, kernels_of
from tir_schedules.attention.decode.plan import bits_of_element
from tir_schedules.attention.decode.program import LEAST_KEYS, SHARE_BYTES
from tir_schedules.attention.problem import AttentionProblem, flat_view
from tir_schedules.core.emission import (
    input_parameters,
    kernel_function,
    opaque_block,
    open_tasks,
    share_of,
    tensor_parameter,
)
from tir_schedules.core.extents import as_expr, extent, flat_rows, read_extents
from tir_schedules.core.extents import flat_view as seen_as
from tir_schedules.core.placement import cache_parameter
from tir_schedules.core.region import Region
from tir_schedules.core.size import SymbolicSize
from tir_schedules.epilogue.epilogue import Epilogue

from .few import OpenFew, few_queries, shared_heads
from .growing import GrowingFew, Growth, reads_past_once
from .growing_cache import GrowingCache, with_room
from .many import OpenMany
from .scores import count_seen, give_room, hiding_mask, keys_and_values


def build_open(region: Region, config: AttentionConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel: inputs, output."""
    problem = AttentionProblem(region)
    with kernel_function("attention") as builder:
        q = tensor_parameter("input0", region.inputs[0])
        cached, apart = keys_and_values(problem)
        operands = input_parameters(region, 3)
        stored = (q, *cached, tensor_parameter("C", region.output))
        read_extents()
        give_room(problem, apart)
        _attention(problem, config, isa, stored, operands).emit()
    return builder.get()


def build_growing(
    region: Region, config: AttentionConfig, isa: Isa, growths: Mapping[str, Growth]
) -> tirx.PrimFunc:
    """The kernel that also writes k and v: q, past and new k, those of v, operands; k, v, output.

    Parameters
    ----------
    growths : mapping
        "k" and "v", which `reject_growth` does not reject.
    """
    problem = AttentionProblem(region)
    with kernel_function("attention") as builder:
        q = tensor_parameter("input0", region.inputs[0])
        parts = {
            name: (
                cache_parameter(f"past_{name}", growth.past),
                tensor_parameter(f"new_{name}", growth.new),
            )
            for name, growth in growths.items()
        }
        operands = input_parameters(region, 3)
        grown = {name: cache_parameter(name, problem.tensors[name]) for name in "kv"}
        stored = (q, grown["k"][0], grown["v"][0], tensor_parameter("C", region.output))
        read_extents()
        for name, (_, apart) in grown.items():
            with_room(problem, name, apart)
        attention = _attention(problem, config, isa, stored, operands)
        with llvm_functions(ADDRESS_LLVM_IR):
            for name, growth in growths.items():
                (past, past_apart), new = parts[name]
                attention.caches[name] = GrowingCache(
                    past=flat_view(past, growth.past),
                    new=flat_view(new, growth.new),
                    present=attention.buffers[name],
                    past_rows=growth.past.shape[-2],
                    new_rows=growth.new.shape[-2],
                    heads=math.prod(growth.past.shape[:-2]),
                    columns=growth.past.shape[-1],
                    past_apart=past_apart,
                    present_apart=grown[name][1],
                    lanes=isa.f32_lanes,
                )
            attention.emit()
    return builder.get()


def _attention(
    problem: AttentionProblem,
    config: AttentionConfig,
    isa: Isa,
    stored: Sequence[Expr],
    operands: list[Expr],
) -> OpenAttention:
    """The program around the parameters: q, k, v and output, then operands."""
    buffers = {
        name: flat_view(buffer, problem.tensors[name])
        for name, buffer in zip(problem.tensors, stored, strict=True)
    }
    first = len(problem.scores.operands)
    scores, product = (
        _epilogue(part, given, kernel)
        for part, given, kernel in zip(
            (problem.scores, problem.product),
            (operands[:first], operands[first:]),
            kernels_of(config),
            strict=True,
        )
    )
    problem.seen = count_seen(problem.scores, operands[:first])
    return OpenAttention(problem, config, isa, buffers, scores, product)


def at_run_time(region: Region, config: AttentionConfig) -> str:
    """What is decided at run time, for `explain`."""
    problem = AttentionProblem(region)
    few = few_queries(problem, shared_heads(problem))
    height = min(kernel.mr for kernel in kernels_of(config))
    texts = [f"bands of up to {height} queries, and keys packed for just so many"]
    if few is not None:
        shared = f", shared by {config.key_shares} threads where there are many"
        in_place = "keys read where they are" + (shared if config.key_shares > 1 else "")
        is_open = isinstance(problem.m, SymbolicSize)
        texts = [f"one query: {in_place}", f"more: {texts[0]}"] if is_open else [in_place]
    if hiding_mask(problem.scores) is not None:
        texts.append("keys up to the last one that the mask shows")
    if config.parallel:
        texts.append(f"up to {config.alone_scores} scores: one thread")
    return "; ".join(texts)


def _epilogue(part: Region, operands: list[Expr], kernel: Microkernel) -> Epilogue:
    """The epilogue of a part, leading dimensions that its operands share alike as one."""
    seen = flat_rows(part)
    pairs = zip(operands, part.operands, seen.operands, strict=True)
    return Epilogue(seen, [seen_as(*each) for each in pairs], kernel.narrow)


@dataclass
class OpenAttention:
    """Emits the program.

    Attributes
    ----------
    problem : AttentionProblem
        Extents and layouts.
    config : AttentionConfig
        Kernels, widths of panels and threads.
    isa : Isa
        What the target has.
    buffers : dict
        "q", "k", "v", "out": flat views of the parameters.
    scores, product : Epilogue
        With the operands' parameters.
    caches : dict
        "k" and "v", if they grow.
    """

    problem: AttentionProblem
    config: AttentionConfig
    isa: Isa
    buffers: dict[str, Expr]
    scores: Epilogue
    product: Epilogue
    caches: dict[str, GrowingCache] = field(default_factory=dict)

    def emit(self) -> None:
        """All tasks."""
        self.group = shared_heads(self.problem)
        m, few = self.problem.m, few_queries(self.problem, self.group)
        if few is None:
            self._many()
        elif not isinstance(m, SymbolicSize):
            self._few(few)
        else:
            with I.If(extent(m) == few.m):
                with I.Then():
                    self._few(few)
                with I.Else():
                    self._many(least=few.m + 1)

    def _tasks(self, shares: int) -> Expr:
        """So many tasks of each attention, or of each that share a k and a v."""
        return materialise(as_expr(_over(extent(self.problem.batches), self.group)) * shares)

    @property
    def _alone(self) -> Expr:
        """Whether one thread runs all tasks."""
        problem = self.problem
        sizes = [as_expr(extent(size)) for size in (problem.batches, problem.m, problem.n)]
        return sizes[0] * sizes[1] * sizes[2] <= self.config.alone_scores

    def _for_tasks(
        self, tasks: Expr, body: Callable[[Expr], None], alone: Expr | None = None
    ) -> None:
        """Runs `body(task)` for so many tasks."""
        threads = self.config.threads if self.config.parallel else 1
        never = tirx.const(False, "bool")
        with open_tasks(threads, never if alone is None else alone) as (thread, parts):
            # Memory is taken once for all tasks of a thread.
            first, number = share_of(tasks, thread, parts)
            with I.serial(number) as place, opaque_block("task"):
                body(bind(first + place))

    def _few(self, problem: AttentionProblem) -> None:
        """The tasks where there are few queries."""
        # The kernel for bfloat16 brings the instruction that narrows f32.
        half = kernels_for(self.isa, "bfloat16", "bfloat16")[0]
        rounding = Epilogue(problem.softmax, (), half.narrow)
        given = (problem, self.isa, self.buffers, (self.scores, rounding, self.product))

        def whole() -> None:
            with opaque_block("few"):
                if reads_past_once(problem) and self.caches:
                    self._for_tasks(
                        self._tasks(1), GrowingFew(self.caches, *given).emit, self._alone
                    )
                    return
                few = OpenFew(*given)

                def behind_copies(number: Expr) -> None:
                    self._copy(number)
                    few.emit(number)

                self._for_tasks(self._tasks(1), behind_copies, self._alone)

        streams = streaming_llvm_ir(self.isa.f32_lanes) if self.caches else ""
        with llvm_functions(half.llvm_ir, streams):
            if self.config.key_shares == 1:
                whole()
                return
            with I.If(self._shares_keys(problem)):
                with I.Then(), opaque_block("shares"):
                    self._copy_caches()
                    OpenFew(*given, self.config.key_shares).emit_shares(self._for_tasks)
                with I.Else():
                    whole()

    def _shares_keys(self, problem: AttentionProblem) -> Expr:
        """Whether threads share keys: many, of fewer attentions than threads."""
        keys, sets = problem.keys, self._tasks(1)
        k, v = (bits_of_element(problem.tensors[name].dtype) for name in "kv")
        read = (problem.d * k + problem.e * v) // 8
        much = keys * sets >= math.ceil(SHARE_BYTES / read)
        few = tirx.And(keys >= 2 * LEAST_KEYS, sets < self.config.threads)
        return tirx.And(few, much)

    def _copy_caches(self) -> None:
        """Writes the keys and values that grow, by all threads."""
        if self.caches:
            with opaque_block("copies"):
                self._for_tasks(self._tasks(1), self._copy, self._alone)

    def _copy(self, head: Expr) -> None:
        """Writes the keys and values of a head, if they grow."""
        for cache in self.caches.values():
            cache.copy(head)

    def _many(self, least: int = 1) -> None:
        """The tasks where there are many queries, at least so many."""
        self._copy_caches()
        epilogues = self.scores, self.product
        given = self.problem, self.config, self.isa, self.buffers, *epilogues, self.group
        many = OpenMany(*given, least)
        many.begin()
        with llvm_functions(PREFETCH_LLVM_IR):
            self._for_tasks(self._tasks(self.config.row_shares), many.emit, self._alone)


def _over(count: Expr | int, group: int) -> Expr | int:
    """A number of attentions over how many share k and v."""
    if isinstance(count, int):
        return count // group
    return count if group == 1 else I.floordiv(count, group)
