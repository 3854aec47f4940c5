"""Template "attention": softmax(q k^T * scale + mask) v as one program; nothing between is stored.

A merged region of three parts, described in attention_problem.py. One parallel region over
attentions (those that share k and v together), and shares of the queries where there are too few.
k and v are packed once for each task; a band of scores stays in cache. With few queries nothing is
packed: see attention_decode.py.

The blocks follow FlashAttention (Dao et al., arXiv 2205.14135) where the keys are too many for a
band of scores to stay in L1; otherwise the softmax is computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.errors import ConfigError
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, kernels_for, microkernel_named
from microkernels.prefetch import PREFETCH_LLVM_IR
from microkernels.vectors import Expr, parameter

from . import attention_decode, batch_matmul
from .attention_problem import AttentionProblem, flat_view
from .attention_program import AttentionProgram, Blocks
from .batch_matmul import multiplied
from .blocking import balanced, estimate_cycles, shares
from .config import Config
from .epilogue import Epilogue
from .machine import Machine
from .merged_reference import part_result
from .region import Region
from .template import Template, register_template
from .tile_config import PARALLEL_FLOPS, RESULT_DTYPES
from .tile_loops import for_share
from .zero_points import zero_point_inputs

MOST_KEYS = 2048  # of which a band of scores is well kept in cache
KEY_BLOCK = 960
QUERY_BLOCK = 64


class AttentionConfig(Config, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    scores_kernel, product_kernel : str
        The microkernels of the two products.
    band : int
        Queries whose scores are in cache together.
    score_vectors, product_vectors : int
        Most vectors of columns of the register tiles.
    key_block : int
        Keys after which the softmax is brought up to date; 0: all of them at once.
    query_block : int
        Queries that share a block of keys in cache, if there are several.
    row_shares : int
        Tasks that the queries of one attention are cut into; each packs k and v for itself.
    prefetch : bool
        Whether the operands of the next task are fetched into L2 meanwhile.
    parallel : bool
        Whether the tasks run on all threads.
    skinny : bool
        Whether k and v are read where they are stored, for few queries; of the other numbers only
        `parallel` and `key_shares` count then.
    key_shares : int
        Tasks that the keys are cut into, if skinny.
    """

    scores_kernel: str
    product_kernel: str
    band: int
    score_vectors: int
    product_vectors: int
    key_block: int = 0
    query_block: int = QUERY_BLOCK
    row_shares: int = 1
    prefetch: bool = False
    parallel: bool = False
    skinny: bool = False
    key_shares: int = 1


def reject(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region, or None."""
    if len(region.parts) != 3:
        return "attention has three parts"
    problem = AttentionProblem(region)
    softmax = problem.softmax
    if softmax.op != "softmax" or int(softmax.attrs["axis"]) != len(softmax.output.shape) - 1:
        return "the softmax runs along another axis than the keys"
    if softmax.operands or [s.op for s in softmax.epilogue if s.op != "constant"] not in (
        [],
        ["cast"],
        ["quantize"],
    ):
        return "something else than a rounding between softmax and product"
    if region.output.dtype not in RESULT_DTYPES or problem.scores.output.dtype != "float32":
        return f"scores of type {problem.scores.output.dtype}, result {region.output.dtype}"
    for part in (problem.scores, problem.product):
        reason = batch_matmul.reject(part, isa)
        if reason is not None:
            return reason
        if zero_point_inputs(part):
            return "a zero point that is known at run time only"
    return problem.reject()


def default_config(region: Region, machine: Machine) -> AttentionConfig:
    """The configuration with the fewest estimated cycles."""
    candidates = list(_configs(region, machine))
    problem = AttentionProblem(region)
    best = min(candidates, key=lambda config: _cycles(problem, config))
    if not attention_decode.fits(region):
        return best
    parallel, key_shares = attention_decode.default_shares(region, machine)
    fields = {"skinny": True, "parallel": parallel, "key_shares": key_shares}
    return msgspec.structs.replace(best, **fields)


def space(region: Region, machine: Machine) -> Iterator[AttentionConfig]:
    """Every pair of kernels, higher bands, and other blocks of keys."""
    problem = AttentionProblem(region)
    default = default_config(region, machine)
    key_blocks = [k for k in (256, 512, 1024) if k < problem.n and _may_run_on(problem)]
    found = {msgspec.structs.replace(default, skinny=False)}
    for config in _configs(region, machine):
        for band in {config.band, 2 * config.band, 3 * config.band}:
            for key_block in {config.key_block, *key_blocks}:
                for prefetch in (False, True):
                    fields = {"band": band, "key_block": key_block, "prefetch": prefetch}
                    found.add(msgspec.structs.replace(config, **fields))
    yield default
    yield from sorted(found - {default}, key=lambda config: _cycles(problem, config))


def _kernels(part: Region, isa: Isa) -> list[Microkernel]:
    """The microkernels for one product; without the skinny ones, whose bands are too low."""
    kernels = kernels_for(isa, *multiplied(part))
    return [kernel for kernel in kernels if kernel.mr >= 6] or list(kernels)


def _may_run_on(problem: AttentionProblem) -> bool:
    """Whether the softmax can go on from block to block: not if it is rounded to integers."""
    return problem.softmax.output.dtype in ("float32", "bfloat16")


def _configs(region: Region, machine: Machine) -> Iterator[AttentionConfig]:
    """One configuration for every pair of kernels."""
    problem = AttentionProblem(region)
    lanes = machine.isa.f32_lanes
    sets = problem.batches // problem.group
    parallel = machine.threads > 1 and flops(region) >= PARALLEL_FLOPS
    uneven = sets % machine.threads and sets < 4 * machine.threads
    key_block = 0
    whole = all(lanes % k.kr == 0 for k in _kernels(problem.product, machine.isa))
    if problem.n > MOST_KEYS and _may_run_on(problem) and whole:
        key_block = KEY_BLOCK
    stored = sum(tensor.size for tensor in problem.tensors.values())
    for scores in _kernels(problem.scores, machine.isa):
        for product in _kernels(problem.product, machine.isa):
            yield AttentionConfig(
                scores_kernel=scores.name,
                product_kernel=product.name,
                band=min(problem.m, max(scores.mr, product.mr)),
                score_vectors=min(scores.vectors, math.ceil(problem.n / lanes)),
                product_vectors=min(product.vectors, math.ceil(problem.e / lanes)),
                key_block=key_block,
                row_shares=min(problem.m, machine.threads) if parallel and uneven else 1,
                prefetch=problem.batches > 1 and 4 * stored > machine.l2_bytes,
                parallel=parallel,
            )


def _cycles(problem: AttentionProblem, config: AttentionConfig) -> float:
    """Estimated cycles of one attention's products."""
    scores, product = _kernels_of(config)
    rows = math.ceil(problem.m / config.row_shares)
    total = 0.0
    for kernel, n, k, vectors in (
        (scores, problem.n, problem.d, config.score_vectors),
        (product, problem.e, problem.n, config.product_vectors),
    ):
        steps = math.ceil(k / kernel.kr)
        columns = math.ceil(n / kernel.lanes)
        height = min(kernel.mr, config.band)
        for group in balanced(rows, config.band):
            cycles = estimate_cycles(group.size, columns, steps, height, vectors, steps)
            total += group.count * cycles
    return total


def _kernels_of(config: AttentionConfig) -> tuple[Microkernel, Microkernel]:
    return microkernel_named(config.scores_kernel), microkernel_named(config.product_kernel)


def _check(region: Region, config: AttentionConfig, isa: Isa) -> None:
    """Refuses numbers that are out of range.

    Raises
    ------
    ConfigError
        Saying which.
    """
    for kernel, part, vectors in zip(
        _kernels_of(config),
        (region.parts[0], region.parts[2]),
        (config.score_vectors, config.product_vectors),
        strict=True,
    ):
        if not isa.includes(kernel.isa):
            raise ConfigError(f"{kernel.name} needs {kernel.isa.name}; the target has {isa.name}")
        if (kernel.a_dtype, kernel.b_dtype) != multiplied(part):
            raise ConfigError(f"{kernel.name} does not multiply what {part.key} does")
        if not 1 <= vectors <= kernel.vectors:
            raise ConfigError(f"{vectors} vectors: {kernel.name} has 1 to {kernel.vectors}")
    for name in ("band", "query_block", "row_shares", "key_shares"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name}={getattr(config, name)}: must be at least 1")
    if config.skinny and not attention_decode.fits(region):
        raise ConfigError(f"skinny: too many queries, or strides, in {region.key}")
    if config.key_block and not _may_run_on(AttentionProblem(region)):
        raise ConfigError("key_block: probabilities that are rounded to integers need all keys")
    if config.key_block and isa.f32_lanes % microkernel_named(config.product_kernel).kr:
        raise ConfigError(f"key_block: {config.product_kernel} takes more than one vector of keys")
    if config.key_block % isa.f32_lanes:
        raise ConfigError(f"key_block={config.key_block}: must be a multiple of {isa.f32_lanes}")


def build(region: Region, config: AttentionConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel."""
    _check(region, config, isa)
    if config.skinny:
        return attention_decode.build_decode(region, config, isa)
    problem = AttentionProblem(region)
    kernels = _kernels_of(config)
    key_vectors = math.ceil(problem.n / isa.f32_lanes)
    blocks = Blocks(
        config.band,
        config.score_vectors,
        config.product_vectors,
        min(config.key_block // isa.f32_lanes or key_vectors, key_vectors),
        config.query_block,
    )
    row_shares = shares(problem.m, min(config.row_shares, problem.m))
    share_count = sum(group.count for group in row_shares)
    sets = problem.batches // problem.group
    tasks = sets * share_count
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("attention")
        I.func_attr({"tirx.noalias": True})
        parameters = [
            parameter(f"input{i}", tensor.shape, tensor.dtype)
            for i, tensor in enumerate(region.inputs)
        ]
        c = parameter("C", region.output.shape, region.output.dtype)
        first = 3 + len(problem.scores.operands)
        buffers = {
            name: flat_view(buffer, problem.tensors[name])
            for name, buffer in zip(("q", "k", "v", "out"), (*parameters[:3], c), strict=True)
        }
        program = AttentionProgram(
            problem,
            isa,
            kernels,
            blocks,
            buffers,
            Epilogue(problem.scores, parameters[3:first], kernels[0].narrow),
            Epilogue(problem.product, parameters[first:], kernels[1].narrow),
            config.prefetch,
        )
        with (
            I.attr(0, "pragma_import_llvm", PREFETCH_LLVM_IR),
            I.parallel(tasks) if config.parallel and tasks > 1 else I.serial(tasks) as task,
            I.sblock("task"),
        ):
            I.reads()
            I.writes()
            shared = I.floordiv(task, share_count)
            following = tirx.Min(shared + 1, sets - 1)
            program.pack(shared * problem.group)
            program.allocate(row_shares[0].size)

            def attend(member: Expr | int) -> None:
                for_share(
                    row_shares,
                    I.floormod(task, share_count),
                    lambda row, rows: program.emit(
                        shared * problem.group + member,
                        row,
                        rows,
                        following * problem.group + member,
                    ),
                )

            if problem.group == 1:
                attend(0)
            else:
                with I.serial(problem.group) as member:
                    attend(member)
    return builder.get()


def kernel_name(region: Region, config: AttentionConfig, isa: Isa) -> str:
    """The microkernels' names; the skinny form takes only their multiply-add."""
    names = " + ".join(dict.fromkeys((config.scores_kernel, config.product_kernel)))
    return f"skinny {names}" if config.skinny else names


def flops(region: Region) -> int:
    """Multiplications and additions of both products."""
    problem = AttentionProblem(region)
    return 2 * problem.batches * problem.m * problem.n * (problem.d + problem.e)


def reference(region: Region, inputs: list[np.ndarray]) -> np.ndarray:
    """The parts one after the other, in float64; the result as it is stored."""
    problem = AttentionProblem(region)
    scores, softmax, product = region.parts
    stored = dict(zip("qkv", inputs[:3], strict=True))
    first = 3 + len(scores.operands)
    q = problem.logical("q", stored["q"]).reshape(scores.inputs[0].shape)
    k = problem.logical("k", stored["k"]).swapaxes(-1, -2).reshape(scores.inputs[1].shape)
    v = problem.logical("v", stored["v"]).reshape(product.inputs[1].shape)
    value = part_result(scores, [q, k, *inputs[3:first]])
    if problem.causal is not None:
        visible = np.tri(problem.m, problem.n, problem.causal, dtype=bool)
        value = np.where(visible, value, -np.inf)
    value = part_result(product, [part_result(softmax, [value]), v, *inputs[first:]])
    result = np.zeros(region.output.shape, value.dtype)
    view = problem.logical("out", result)
    view[...] = value.reshape(view.shape)
    return result


ATTENTION = register_template(
    Template(
        name="attention",
        config_type=AttentionConfig,
        default_config=default_config,
        space=space,
        build=build,
        kernel_name=kernel_name,
        flops=flops,
        reference=reference,
        reject=reject,
    )
)
