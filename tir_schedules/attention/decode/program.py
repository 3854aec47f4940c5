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

import math
from typing import Protocol

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import kernels_for
from microkernels.tvm_compat import llvm_functions
from microkernels.vector.expressions import bind
from tir_schedules.attention.problem import (
    AttentionProblem,
    columns_are_contiguous,
    flat_view,
)
from tir_schedules.core.emission import (
    input_parameters,
    kernel_function,
    opaque_block,
    tensor_parameter,
)
from tir_schedules.core.region import Region
from tir_schedules.cost.parallel import threads_worth
from tir_schedules.epilogue.epilogue import Epilogue

from .plan import DecodePlan, bits_of_element, sets_side_by_side
from .products import DecodeProducts
from .scores import DecodeScores

MOST_QUERIES = 4  # more are worth packing K and V
MOST_ROWS = 32
SHARE_BYTES = 256 << 10  # of K and V: less is not worth two more joins


class DecodeConfig(Protocol):
    """The numbers that `build_decode` reads."""

    @property
    def parallel(self) -> bool:
        """Whether tasks run on all threads."""

    @property
    def threads(self) -> int:
        """On how many threads tasks run; 0: on all."""

    @property
    def key_shares(self) -> int:
        """Tasks that the keys of one K are cut into."""


def fits(region: Region) -> bool:
    """Whether few rows share each K and V, and these can be read where they are stored."""
    problem = AttentionProblem(region)
    if problem.m > MOST_QUERIES or problem.m * problem.group > MOST_ROWS:
        return False
    k, v, out = (problem.layouts[name] for name in ("k", "v", "out"))
    reads_k = columns_are_contiguous(k, problem.d) or k.row == 1
    columns = columns_are_contiguous(v, problem.e) and columns_are_contiguous(out, problem.e)
    return reads_k and columns


def default_shares(region: Region, machine: Machine) -> dict[str, int]:
    """`parallel`, `threads` and `key_shares` of the default configuration."""
    problem = AttentionProblem(region)
    sets = problem.batches // problem.group
    k, v = (problem.tensors[name].dtype for name in "kv")
    bits = problem.d * bits_of_element(k) + problem.e * bits_of_element(v)
    read = sets * problem.n * bits // 8
    threads = threads_worth(machine, read / machine.memory_rate())
    if threads == 1:
        return {"parallel": False, "key_shares": 1}
    fields = {"parallel": True, "threads": 0 if threads == machine.threads else threads}
    tasks = sets // sets_side_by_side(problem)
    if tasks >= threads or read < SHARE_BYTES:
        return {**fields, "parallel": sets > 1, "key_shares": 1}
    return {**fields, "key_shares": min(math.ceil(threads / tasks), math.ceil(problem.n / 64))}


def build_decode(region: Region, config: DecodeConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel: inputs, output."""
    problem = AttentionProblem(region)
    plan = DecodePlan(problem, isa, config.parallel, config.key_shares, config.threads)
    first = len(problem.scores.operands) + 3
    with kernel_function("attention_decode") as builder:
        inputs = input_parameters(region)
        output = tensor_parameter("C", region.output)
        q, k, v, out = (
            flat_view(buffer, tensor)
            for buffer, tensor in zip((*inputs[:3], output), problem.tensors.values(), strict=True)
        )
        # The kernel for bfloat16 brings the instruction that narrows f32.
        half = kernels_for(isa, "bfloat16", "bfloat16")[0]
        with llvm_functions(half.llvm_ir):
            scores = DecodeScores(
                plan, q, k, Epilogue(problem.scores, inputs[3:first], half.narrow)
            )
            products = DecodeProducts(
                plan,
                v,
                out,
                Epilogue(problem.softmax, (), half.narrow),
                Epilogue(problem.product, inputs[first:], half.narrow),
            )
            _emit(plan, scores, products)
    return builder.get()


def _emit(plan: DecodePlan, scores: DecodeScores, products: DecodeProducts) -> None:
    """All phases: in one parallel region, or in one each if keys are shared out."""
    if plan.shares == 1:
        with plan.task_loop(plan.tasks, "task") as task:
            products.allocate()
            share = tirx.const(0, "int32")
            scores.emit(task, share)
            products.emit(task, share)
            plan.for_sets(task, products.merge)
        return
    with opaque_block("decode"):
        products.allocate()
        for phase in (scores.emit, products.emit):
            with plan.task_loop(plan.tasks * plan.shares, "share") as item:
                phase(bind(I.floordiv(item, plan.shares)), bind(I.floormod(item, plan.shares)))
        with plan.task_loop(plan.sets, "merge") as number:
            products.merge(number, number)
