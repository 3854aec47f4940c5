"""The configuration of the template "attention", and how it is chosen.

For each product, an estimate chooses between AMX tiles and vector kernels. It leaves out the
softmax, which takes more than half of the time if AMX tiles multiply.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
from tvm import DataType

from microkernels.base.arrays import SHIFT
from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from microkernels.registry import kernels_for, microkernel_named, tile_kernels_for
from tir_schedules.core.blocking import balanced
from tir_schedules.core.config import Config, best_first, check_numbers
from tir_schedules.core.product_plan import ProductPlan, is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.size import SymbolicSize
from tir_schedules.cost import cost, parallel
from tir_schedules.cost.amx_cost import LEAST_GAIN
from tir_schedules.product.batch_matmul import multiplied
from tir_schedules.product.tile_config import cuts, tile_cycles

from . import problem as problems
from .problem import AttentionProblem, bits_of_element, columns_are_contiguous, row_unit

# Cycles for a vector of scores beside its products: 12 to 20, measured on Granite Rapids.
SOFTMAX_CYCLES = 15.0
SMALL = 4.0  # time of a small attention over that of its products (12 of 7 x 7 on Zen 4)
MOST_KEYS = 2048  # with more keys, a row block of scores does not stay in cache
KEY_BLOCK = 960
QUERY_BLOCK = 64
# For few queries, whose k and v are read in place:
LEAST_KEYS = 64  # of a thread's chunk of keys
# Least gain from dividing keys, as a fraction of the time from memory: K and V in cache gain less.
LEAST_SAVED = 0.1
ALIKE = 1.05  # more threads may take longer by this factor, as K and V may be in L3
SHARE_BYTES = 256 << 10  # of K and V: with less, dividing keys is not worth two more joins


class AttentionConfig(Config, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    scores_kernel, product_kernel : str
        The microkernels of the two products.
    band : int
        Rows of a row block: queries whose scores are in cache together.
    score_vectors, product_vectors : int
        Most vectors of columns of the register tiles.
    key_block : int
        Keys after which the softmax is brought up to date; 0: all keys at once.
    query_block : int
        Queries that share a block of keys in cache, if there are several blocks.
    row_shares : int
        Tasks into which the queries of one attention are cut.
    packs_first : bool
        Whether all k and v are packed before the first task, by all threads; otherwise each task
        packs its own.
    prefetch : bool
        Whether a task prefetches the operands of the next task into L2.
    prefetch_elements : int
        Dynamic sizes prefetch only from this number of stored elements on.
    parallel : bool
        Whether the tasks run on several threads.
    threads : int
        Number of threads; 0: all.
    skinny : bool
        Whether k and v are read in place, for few queries; then only `parallel`, `threads`,
        `key_shares` and `key_sets` of the other fields count.
    key_shares : int
        Tasks into which the keys are cut, if skinny, or for one query if sizes are dynamic.
    key_sets : int
        Most k and v side by side that a task reads together, if skinny and the keys are cut; 0:
        all.
    alone_scores : int
        Up to this total number of scores, if sizes are dynamic, one thread runs all tasks.
    """

    scores_kernel: str
    product_kernel: str
    band: int
    score_vectors: int
    product_vectors: int
    key_block: int = 0
    query_block: int = QUERY_BLOCK
    row_shares: int = 1
    packs_first: bool = False
    prefetch: bool = False
    prefetch_elements: int = 0
    parallel: bool = False
    threads: int = 0
    skinny: bool = False
    key_shares: int = 1
    key_sets: int = 0
    alone_scores: int = 0


def default_config(region: Region, machine: Machine) -> AttentionConfig:
    """The configuration with the fewest estimated cycles; AMX tiles have to win by a margin."""
    if region.is_dynamic:
        return _dynamic_config(region, machine)
    problem = AttentionProblem(region)
    found = candidates(problem, machine)
    best = min(found, key=lambda each: busiest_cycles(problem, each, machine, LEAST_GAIN))
    if not reads_in_place(region):
        return best
    shares = default_shares(region, machine)
    fields = {"skinny": True, "packs_first": False, **shares}
    return msgspec.structs.replace(best, **fields)


def reads_in_place(region: Region) -> bool:
    """Whether few rows share each K and V, and K and V can be read in place."""
    problem = AttentionProblem(region)
    if "float16" in (*multiplied(problem.scores), *multiplied(problem.product)):
        return False
    if problems.few_queries(problem) is None:
        return False
    k, v, out = (problem.layouts[name] for name in ("k", "v", "out"))
    reads_k = columns_are_contiguous(k, problem.d) or k.row == 1
    columns = columns_are_contiguous(v, problem.e) and columns_are_contiguous(out, problem.e)
    return reads_k and columns


def default_shares(region: Region, machine: Machine) -> dict[str, int]:
    """Fields of the default configuration for few queries: the fastest chunks of keys."""
    problem = AttentionProblem(region)
    sets, side = problem.batches // problem.group, problems.sets_side_by_side(problem)
    k, v = (problem.tensors[name].dtype for name in "kv")
    key_bytes = (problem.d * bits_of_element(k) + problem.e * bits_of_element(v)) // 8
    read = sets * problem.n * key_bytes
    if parallel.threads_worth(machine, read / machine.memory_rate()) == 1:
        return {"parallel": False, "key_shares": 1}
    vectors = math.ceil(problem.n / machine.isa.f32_lanes)
    rows, partial = sets * problem.group * problem.m, 4 * problem.e

    def most(together: int) -> int:
        keys = math.ceil(problem.n * together / LEAST_KEYS)
        return min(vectors, keys, machine.threads) if read >= SHARE_BYTES else 1

    def us(threads: int, together: int, shares: int) -> float:
        """Microseconds of the busiest thread: its keys, forks, and chunks that it merges.

        Undivided keys take `LEAST_SAVED` less, so that dividing them has to win by that.
        """
        keys = math.ceil(sets // together * shares / threads) * math.ceil(vectors / shares)
        keys *= together * machine.isa.f32_lanes
        each = keys * key_bytes / machine.memory_rate(threads) + machine.fork_us(threads)
        if shares == 1:
            return each * (1 - LEAST_SAVED)
        merged = math.ceil(rows / threads) * shares * partial / machine.foreign_rate
        return each + merged + 2 * machine.fork_us(threads)

    # The fewer sets a task reads together, the more tasks there are.
    sides = [side]
    if sets // side * most(side) < machine.threads:
        sides = [count for count in range(1, side + 1) if side % count == 0]
    ways = [(each, count) for each in sides for count in range(1, most(each) + 1)]
    counts = parallel.halves(machine.threads)
    best = [min((us(n, *way), way[1], -way[0], n) for way in ways) for n in counts]
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


def _dynamic_config(region: Region, machine: Machine) -> AttentionConfig:
    """The configuration for dynamic sizes: vector kernels; queries are cut if heads are few."""
    problem = AttentionProblem(region.sampled())
    alone = replace(machine, threads=1)
    found = candidates(problem, alone)
    vectors = [each for each in found if problems.tile_kernel(kernels_of(each)) is None]
    best = min(vectors, key=lambda config: busiest_cycles(problem, config, alone))
    given = AttentionProblem(region)
    heads = math.prod(size for size in given.factors if not isinstance(size, SymbolicSize))
    # How many k and v there are, counting static factors of the batch only.
    strides = zip(*(given.layouts[name].batch for name in "kv"), strict=True)
    moving = [n for n, move in zip(given.factors, strides, strict=True) if any(move)]
    sets = math.prod(size for size in moving if not isinstance(size, SymbolicSize))
    return msgspec.structs.replace(
        best,
        key_block=0,
        prefetch=True,
        prefetch_elements=machine.l2_bytes // 4,
        parallel=machine.threads > 1,
        threads=machine.threads,
        row_shares=math.ceil(machine.threads / heads),
        key_shares=math.ceil(machine.threads / sets),
        alone_scores=parallel.alone_below(
            machine, SMALL * cost.flops_us(2 * (problem.d + problem.e), machine)
        ),
    )


def space(region: Region, machine: Machine) -> Iterator[AttentionConfig]:
    """Every pair of kernels with row blocks, panels and blocks of keys of several sizes."""
    if region.is_dynamic:
        yield default_config(region, machine)
        return
    problem = AttentionProblem(region)
    default = default_config(region, machine)
    key_blocks = {k for k in (256, 512, 1024) if k < problem.n and _may_run_on(problem)}
    found, lanes = {msgspec.structs.replace(default, skinny=False)}, machine.isa.f32_lanes
    for config in candidates(problem, machine):
        bands = {*cuts(problem.m, config.band)[::2], config.band, 2 * config.band}
        numbers = itertools.product(
            {band for band in bands if band < 2 * problem.m},
            _panels(math.ceil(problem.n / lanes), config.score_vectors),
            _panels(math.ceil(problem.e / lanes), config.product_vectors),
            {config.key_block, *key_blocks},
            (False, True),
        )
        names = ("band", "score_vectors", "product_vectors", "key_block", "prefetch")
        found |= {
            msgspec.structs.replace(config, **dict(zip(names, values, strict=True)))
            for values in numbers
        }
    yield from best_first(default, found, lambda config: busiest_cycles(problem, config, machine))


def _panels(n_vectors: int, most: int) -> set[int]:
    """Widths of panels: the widest one, the narrowest one, one between."""
    widths = cuts(n_vectors, most)
    return {widths[0], widths[len(widths) // 2], widths[-1]}


def _kernels(problem: AttentionProblem, part: Region, isa: Isa) -> list[Microkernel]:
    """The microkernels for one product, without low ones, whose row blocks would be too low."""
    types = multiplied_on(isa, part)
    kernels = () if "float16" in types else kernels_for(isa, *types)
    high = [kernel for kernel in kernels if kernel.mr >= 6] or list(kernels)
    return [*high, *tile_kernels_for(isa, *_tile_types(problem, part))]


def multiplied_on(isa: Isa, part: Region) -> tuple[str, str]:
    """Element types of the vector kernels' operands.

    Without instructions for bfloat16, such operands are widened when they are packed.
    """
    stored = {tensor.dtype for tensor in part.inputs[:2]}
    if stored == {"bfloat16"} and not isa.multiplies_bf16:
        return "float32", "float32"
    return multiplied(part)


def _tile_types(problem: AttentionProblem, part: Region) -> tuple[str, str]:
    """Types of the operands on AMX tiles: the stored types, signed or unsigned."""
    if not is_integer(part):
        return multiplied(part)
    a, b = (tensor.dtype for tensor in part.inputs[:2])
    # int8 probabilities from -128 on are multiplied as uint8, which needs no zero point.
    shifted = part is problem.product and part.attrs.get("a_zero_point") == -SHIFT
    return "uint8" if shifted else a, b


def _may_run_on(problem: AttentionProblem) -> bool:
    """Whether the softmax can continue from block to block: not if it is rounded to integers."""
    return problem.softmax.output.dtype in ("float32", "bfloat16", "float16")


def candidates(problem: AttentionProblem, machine: Machine) -> Iterator[AttentionConfig]:
    """One configuration for every pair of kernels."""
    lanes = machine.isa.f32_lanes
    key_block = 0
    kernels = [_kernels(problem, part, machine.isa) for part in (problem.scores, problem.product)]
    whole = all(lanes % kernel.kr == 0 for kernel in kernels[1])
    if problem.n > MOST_KEYS and _may_run_on(problem) and whole:
        key_block = KEY_BLOCK
    stored = sum(tensor.size for tensor in problem.tensors.values())
    for scores, product in itertools.product(*kernels):
        if scores.mr != product.mr and scores.by_tiles and product.by_tiles:
            continue  # both products have one configuration of tiles
        alone = AttentionConfig(
            scores_kernel=scores.name,
            product_kernel=product.name,
            band=min(problem.m, max(scores.mr, product.mr)),
            score_vectors=min(scores.vectors, math.ceil(problem.n / lanes)),
            product_vectors=min(product.vectors, math.ceil(problem.e / lanes)),
            key_block=key_block,
            prefetch=problem.batches > 1 and 4 * stored > machine.l2_bytes,
        )
        yield _share(problem, alone, machine)


def _share(problem: AttentionProblem, config: AttentionConfig, machine: Machine) -> AttentionConfig:
    """The configuration on as many threads as are worth it."""
    alone_us = cost.flops_us(problem.flops, machine)
    if parallel.threads_worth(machine, alone_us) == 1:
        return config
    kernels, lanes = kernels_of(config), machine.isa.f32_lanes
    row = estimated_cycles(problem, config, machine) / problem.m
    row += SOFTMAX_CYCLES * math.ceil(problem.n / lanes)
    sizes = problem.n * problem.d, problem.n * problem.e
    types = (problem.tensors[name].dtype for name in "kv")
    work = parallel.PackedWork(
        operands=problem.batches // problem.group,
        members=problem.group,
        rows=problem.m,
        unit=row_unit(kernels),
        row_us=row / machine.cycles_per_us,
        stored=sum(s * int(DataType(t).itemsize) for s, t in zip(sizes, types, strict=True)),
        packed=sum(4 * s // k.kr for s, k in zip(sizes, kernels, strict=True)),
    )
    shares = parallel.share_packed_work(work, machine, alone_us)
    # A prefetch is for operands that the next task packs: not if they are packed before.
    prefetch = config.prefetch and not shares.packs_first
    return msgspec.structs.replace(config, prefetch=prefetch, **shares.fields(machine))


def estimated_cycles(
    problem: AttentionProblem, config: AttentionConfig, machine: Machine, handicap: float = 1.0
) -> float:
    """Estimated cycles of one attention's products, without the softmax.

    The cycles of AMX tiles are multiplied by `handicap`.
    """
    total = 0.0
    for plan in plans_of(problem, config):
        if plan.kernel.by_tiles:
            total += handicap * tile_cycles(plan, machine)
            continue
        for group in balanced(plan.m, config.band):
            total += group.count * tile_cycles(replace(plan, m=group.size), machine)
    return total


def busiest_cycles(
    problem: AttentionProblem, config: AttentionConfig, machine: Machine, handicap: float = 1.0
) -> float:
    """Estimated cycles of the products of the busiest thread, for any `row_shares`."""
    shares = problems.row_shares(problem.m, config.row_shares, row_unit(kernels_of(config)))
    tasks = problem.batches * sum(group.count for group in shares)
    threads = (config.threads or machine.threads) if config.parallel else 1
    return math.ceil(tasks / threads) * estimated_cycles(problem, config, machine, handicap)


def plans_of(problem: AttentionProblem, config: AttentionConfig) -> tuple[ProductPlan, ProductPlan]:
    """How the busiest thread's scores and product are cut, with all keys at once."""
    kernels = kernels_of(config)
    rows = problems.row_shares(problem.m, config.row_shares, row_unit(kernels))[0].size

    def plan(kernel: Microkernel, n: int, k: int, vectors: int) -> ProductPlan:
        tile = {"rows": min(kernel.mr, config.band), "vectors": vectors, "m_block": config.band}
        return ProductPlan(kernel=kernel, m=rows, n=n, k=k, **tile, k_block=kernel.steps(k))

    return (
        plan(kernels[0], problem.n, problem.d, config.score_vectors),
        plan(kernels[1], problem.e, problem.n, config.product_vectors),
    )


def kernels_of(config: AttentionConfig) -> tuple[Microkernel, Microkernel]:
    """The microkernels of the scores and of the product."""
    return microkernel_named(config.scores_kernel), microkernel_named(config.product_kernel)


def check(region: Region, config: AttentionConfig, isa: Isa) -> None:
    """Refuses an illegal configuration.

    Raises
    ------
    ConfigError
        If a field is out of range.
    """
    problem, kernels = AttentionProblem(region), kernels_of(config)
    parts = (problem.scores, config.score_vectors), (problem.product, config.product_vectors)
    for kernel, (part, vectors) in zip(kernels, parts, strict=True):
        if not isa.includes(kernel.isa):
            raise ConfigError(f"{kernel.name} needs {kernel.isa.name}; the target has {isa.name}")
        types = _tile_types(problem, part) if kernel.by_tiles else multiplied_on(isa, part)
        if (kernel.a_dtype, kernel.b_dtype) != types:
            raise ConfigError(f"{kernel.name} does not multiply the types of {part.key}")
        if not 1 <= vectors <= kernel.vectors:
            raise ConfigError(f"{vectors} vectors: {kernel.name} takes 1 to {kernel.vectors}")
    if all(kernel.by_tiles for kernel in kernels) and kernels[0].mr != kernels[1].mr:
        raise ConfigError(f"{kernels[0].name} and {kernels[1].name} need tiles of one height")
    limits = dict.fromkeys(("band", "query_block", "row_shares", "key_shares"))
    check_numbers(region, config, limits)
    check_numbers(region, config, {"threads": None, "key_sets": None}, least=0)
    if config.skinny and not reads_in_place(region):
        raise ConfigError(f"skinny=True: K and V cannot be read in place in {region.key}")
    if config.key_block and not _may_run_on(problem):
        raise ConfigError("key_block: probabilities that are rounded to integers need all keys")
    if config.key_block and isa.f32_lanes % microkernel_named(config.product_kernel).kr:
        raise ConfigError(f"key_block: {config.product_kernel} takes more than one vector of keys")
    if config.key_block % isa.f32_lanes:
        raise ConfigError(f"key_block={config.key_block}: must be a multiple of {isa.f32_lanes}")
