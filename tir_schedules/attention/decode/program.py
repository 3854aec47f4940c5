"""Attention of few queries, as in decoding with a KV cache: the time is that of reading K and V.

    scores[r, n] = epilogue(sum over d of q[r, d] * k[n, d])     rows r: queries of a group of heads
    p            = epilogue(softmax(scores))
    out[r, e]    = epilogue(sum over n of p[r, n] * v[n, e])

K and V are read in place, once, and nothing is packed (`skinny_product`). The rows of scores stay
in cache. Where there are fewer pairs of K and V than threads, and many keys, threads share the keys
of a pair: every share has its own largest score and its own sums, which are merged in the end (Dao
et al., "Flash-Decoding for long-context inference", 2023). The sum of the whole row is known before
probabilities are rounded, so sharing changes the rounding of sums only.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.registry import kernels_for
from microkernels.vector.expressions import Expr, bind
from microkernels.vector.memory import end_streams
from tir_schedules.attention.config import AttentionConfig
from tir_schedules.attention.problem import AttentionProblem, flat_view
from tir_schedules.core import emission
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Epilogue

from .plan import DecodePlan
from .products import DecodeProducts
from .scores import DecodeScores

# (number, body, name): runs body(task) for so many tasks on all threads.
ForTasks = Callable[[int | Expr, Callable[[Expr], None], str], None]


class Decode:
    """Emits attentions of few queries.

    Parameters
    ----------
    plan : DecodePlan
        Tasks and buffers.
    epilogues : tuple of Epilogue
        Of the scores, of the softmax and of the product.
    """

    def __init__(self, plan: DecodePlan, epilogues: tuple[Epilogue, Epilogue, Epilogue]) -> None:
        scores, *others = epilogues
        self.plan = plan
        self.scores, self.products = DecodeScores(plan, scores), DecodeProducts(plan, *others)

    def emit(self, task: Expr) -> None:
        """The sets of a task, with all of their keys."""
        share = tirx.const(0, "int32")
        self.products.allocate()
        self.scores.emit(task, share)
        self.products.emit(task, share)
        self.plan.for_sets(task, self.products.merge)
        if self.plan.caches and self.plan.lanes > 1:
            end_streams()

    def emit_shares(self, for_tasks: ForTasks) -> None:
        """All sets, each by several threads: in one parallel region a phase."""
        shares = self.plan.shares
        self.products.allocate()
        for phase in (self.scores.emit, self.products.emit):

            def part(task: Expr, phase: Callable[[Expr, Expr], None] = phase) -> None:
                phase(bind(I.floordiv(task, shares)), bind(I.floormod(task, shares)))

            for_tasks(self.plan.tasks * shares, part, "share")
        for_tasks(self.products.merge_tasks, self.products.merge_task, "merge")


def build_decode(region: Region, config: AttentionConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel: inputs, output."""
    problem = AttentionProblem(region)
    first = len(problem.scores.operands) + 3

    def for_tasks(tasks: int | Expr, body: Callable[[Expr], None], name: str) -> None:
        with emission.task_loop(tasks, config.parallel, name, config.threads) as task:
            body(task)

    with emission.kernel_function("attention_decode") as builder:
        inputs = emission.input_parameters(region)
        output = emission.tensor_parameter("C", region.output)
        buffers = {
            name: flat_view(buffer, tensor)
            for buffer, (name, tensor) in zip(
                (*inputs[:3], output), problem.tensors.items(), strict=True
            )
        }
        # The kernel for bfloat16 brings the instruction that narrows f32.
        half = kernels_for(isa, "bfloat16", "bfloat16")[0]
        with llvm_functions(half.llvm_ir):
            parts = zip(region.parts, (inputs[3:first], (), inputs[first:]), strict=True)
            scores, rounding, product = (Epilogue(*each, half.narrow) for each in parts)
            decode = Decode(DecodePlan(problem, isa, config, buffers), (scores, rounding, product))
            if decode.plan.shares == 1:
                for_tasks(decode.plan.tasks, decode.emit, "task")
            else:
                with emission.opaque_block("decode"):
                    decode.emit_shares(for_tasks)
    return builder.get()
