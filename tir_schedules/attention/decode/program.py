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

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.registry import kernels_for
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
from tir_schedules.cost.parallel import halves, threads_worth
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.batch_matmul import multiplied

from .plan import DecodeConfig, DecodePlan, bits_of_element, sets_side_by_side
from .products import DecodeProducts
from .scores import DecodeScores

MOST_QUERIES = 4  # more are worth packing K and V
MOST_ROWS = 32
LEAST_KEYS = 64  # of a share
# Of the time from memory: less is lost where K and V are in cache.
LEAST_SAVED = 0.1
ALIKE = 1.05  # times as long is as good on more threads, for K and V may be in L3
SHARE_BYTES = 256 << 10  # of K and V: less is not worth two more joins


def fits(region: Region) -> bool:
    """Whether few rows share each K and V, and these can be read where they are stored."""
    problem = AttentionProblem(region)
    if "float16" in (*multiplied(problem.scores), *multiplied(problem.product)):
        return False
    if problem.m > MOST_QUERIES or problem.m * problem.group > MOST_ROWS:
        return False
    k, v, out = (problem.layouts[name] for name in ("k", "v", "out"))
    reads_k = columns_are_contiguous(k, problem.d) or k.row == 1
    columns = columns_are_contiguous(v, problem.e) and columns_are_contiguous(out, problem.e)
    return reads_k and columns


def default_shares(region: Region, machine: Machine) -> dict[str, int]:
    """Fields of the default configuration: the shares that end first."""
    problem = AttentionProblem(region)
    sets, side = problem.batches // problem.group, sets_side_by_side(problem)
    k, v = (problem.tensors[name].dtype for name in "kv")
    key_bytes = (problem.d * bits_of_element(k) + problem.e * bits_of_element(v)) // 8
    read = sets * problem.n * key_bytes
    if threads_worth(machine, read / machine.memory_rate()) == 1:
        return {"parallel": False, "key_shares": 1}
    vectors = math.ceil(problem.n / machine.isa.f32_lanes)
    rows, partial = sets * problem.group * problem.m, 4 * problem.e

    def most(together: int) -> int:
        keys = math.ceil(problem.n * together / LEAST_KEYS)
        return min(vectors, keys, machine.threads) if read >= SHARE_BYTES else 1

    def us(threads: int, together: int, shares: int) -> float:
        """Microseconds of the busiest thread: its keys, forks, shares of rows that it merges.

        Less for whole keys, which others have to beat.
        """
        keys = math.ceil(sets // together * shares / threads) * math.ceil(vectors / shares)
        keys *= together * machine.isa.f32_lanes
        each = keys * key_bytes / machine.memory_rate(threads) + machine.fork_us(threads)
        if shares == 1:
            return each * (1 - LEAST_SAVED)
        merged = math.ceil(rows / threads) * shares * partial / machine.foreign_rate
        return each + merged + 2 * machine.fork_us(threads)

    # The fewer are read together, the more tasks there are.
    sides = [side]
    if sets // side * most(side) < machine.threads:
        sides = [count for count in range(1, side + 1) if side % count == 0]
    best = [
        min(
            (us(n, together, shares), shares, -together, n)
            for together in sides
            for shares in range(1, most(together) + 1)
        )
        for n in halves(machine.threads)
    ]
    enough = ALIKE * min(best)[0]
    shares, together, threads = next(found[1:] for found in best if found[0] <= enough)
    if shares == sets == 1:
        return {"parallel": False, "key_shares": 1}
    return {
        "parallel": True,
        "threads": 0 if threads == machine.threads else threads,
        "key_shares": shares,
        "key_sets": 0 if -together == side else -together,
    }


def build_decode(region: Region, config: DecodeConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel: inputs, output."""
    problem = AttentionProblem(region)
    plan = DecodePlan(problem, isa, config)
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
        with plan.task_loop(products.merge_tasks, "merge") as task:
            products.merge_task(task)
