"""Template "attention": softmax(q k^T * scale + mask) v in one kernel.

problem.py describes the region, which is merged from three parts. One parallel region runs over the
heads; heads that share k and v are one task. If there are too few heads, the queries of a head are
divided too. Each task packs its k and v or, if that would repeat too much work, all threads pack
them before; a row block of scores stays in cache. With few queries nothing is packed: see `decode`.

If there are too many keys for a row block of scores to stay in L1, keys are taken in blocks, as in
FlashAttention (Dao et al., arXiv 2205.14135). Otherwise the softmax is computed over all keys at
once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.arrays import RANGES
from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, bind
from microkernels.vector.memory import PREFETCH_LLVM_IR
from tir_schedules.core import blocking, emission, loop_nest, size, template
from tir_schedules.core.product_plan import Product, is_integer, zero_point_inputs
from tir_schedules.core.region import Region
from tir_schedules.cost.amx_cost import LEAST_GAIN, reasons
from tir_schedules.cost.parallel import kind_of
from tir_schedules.epilogue.epilogue import Epilogue, region_result
from tir_schedules.product.batch_matmul import BATCH_MATMUL, multiplied
from tir_schedules.product.tile_config import RESULT_DTYPES

from . import config as configs
from .config import AttentionConfig
from .decode.program import build_decode
from .dynamic import at_run_time, build_dynamic
from .problem import (
    SINK,
    WIDENED,
    AttentionProblem,
    row_shares,
    row_unit,
    tile_kernel,
    with_columns,
)
from .tiled.program import StaticAttentionEmitter

# The two products of an attention before they are built: their loops, sizes and kernels.
#
# tasks > query blocks > key blocks > row blocks ("band") > panels > tile


SKINNY = "few queries: K and V are read once, where they are stored, and not packed for tiles"


def nests(region: Region, config: AttentionConfig) -> Iterator[loop_nest.LoopNest]:
    """The loops of the two products; the softmax is equal in all configurations."""
    problem, kernels = AttentionProblem(region), configs.kernels_of(config)
    key_vectors = math.ceil(problem.n / kernels[0].lanes)
    key_blocks, tasks_of_one = 1, config.key_shares
    rows = float(problem.m)
    if not config.skinny:
        shares = row_shares(problem.m, config.row_shares, row_unit(kernels))
        tasks_of_one = sum(group.count for group in shares)
        rows /= tasks_of_one
        if config.key_block:
            key_blocks = loop_nest.pieces(key_vectors, config.key_block // kernels[0].lanes)
    parts = key_blocks * (config.key_shares if config.skinny else 1)
    query_blocks = loop_nest.pieces(rows, config.query_block) if key_blocks > 1 else 1
    query_block = rows / query_blocks
    bands = loop_nest.pieces(query_block, config.band)
    band = query_block / bands
    tasks = problem.batches * tasks_of_one
    for kernel, n, n_parts, k, k_parts, most in (
        (kernels[0], problem.n, parts, problem.d, 1, config.score_vectors),
        (kernels[1], problem.e, 1, problem.n, parts, config.product_vectors),
    ):
        all_vectors, all_steps = math.ceil(n / kernel.lanes), kernel.steps(k)
        vectors, steps = all_vectors / n_parts, all_steps / k_parts
        tiling = loop_nest.Tiling(min(kernel.mr, band), most, band, steps)
        width = kernel.lanes * vectors

        def touched(
            rows: float, blocks: float, width: float = width, k: float = steps
        ) -> loop_nest.Bytes:
            return 4 * rows * k, 4 * width * k * blocks, 4 * rows * width

        a, b, c = touched(rows, key_blocks)
        kind, whole = kind_of(config.parallel), (tasks * a, tasks * b, tasks * c)
        loops = [
            loop_nest.Loop("task", tasks, kind, whole),
            loop_nest.Loop("query block", query_blocks, "serial", touched(rows, key_blocks)),
            loop_nest.Loop("key block", key_blocks, "serial", touched(query_block, key_blocks)),
            loop_nest.Loop("band", bands, "serial", touched(query_block, 1)),
            *loop_nest.product_loops((band, vectors, steps), tiling, kernel.lanes),
        ]
        operations = problem.batches * problem.m * n * k
        useful = n / (all_vectors * kernel.lanes) * k / (all_steps * kernel.kr)
        yield loop_nest.LoopNest(loop_nest.nested(loops), operations, useful)


def products(region: Region, config: AttentionConfig, machine: Machine) -> Iterator[Product]:
    """Both products, unless K and V are read in place.

    The number of products is not known (`copies` is 0) if hidden keys are skipped or the softmax
    continues from block to block. The estimate is for both products together, as tiles may need the
    queries cut in another way.
    """
    if config.skinny:
        return
    problem = AttentionProblem(region)
    shares = row_shares(problem.m, config.row_shares, row_unit(configs.kernels_of(config)))
    copies = problem.batches * sum(group.count for group in shares)
    known = not config.key_block and problem.causal is None

    cycles = partial(configs.estimated_cycles, problem, machine=machine, handicap=LEAST_GAIN)
    busiest = partial(configs.busiest_cycles, problem, machine=machine, handicap=LEAST_GAIN)
    # Other configurations may cut rows in another way: their whole times are compared.
    scale = cycles(config) / busiest(config) / LEAST_GAIN

    def others(field: str) -> list[tuple[str, float]]:
        found = configs.candidates(problem, machine)
        return [(getattr(other, field), scale * busiest(other)) for other in found]

    parts = {"scores": problem.scores, "product": problem.product}
    for (name, part), plan in zip(parts.items(), configs.plans_of(problem, config), strict=True):
        yield Product(
            part=part,
            plan=plan,
            copies=copies if known else 0,
            cycles=cycles(config),
            others=partial(others, f"{name}_kernel"),
            name=name,
        )


_BYTES = 4  # of a row that integer kernels multiply at once


def _emit(emitter: StaticAttentionEmitter, of_rows: tuple[blocking.Group, ...]) -> None:
    """Emits packing by all threads and then all tasks, or tasks that pack k and v themselves."""
    problem, config = emitter.problem, emitter.config
    tasks = partial(emission.task_loop, parallel=config.parallel, threads=config.threads)
    sets, group = problem.batches // problem.group, problem.group
    share_count = sum(share.count for share in of_rows)

    def attend(task: Expr, batch: Expr, following: Expr) -> None:
        share = I.floormod(task, share_count)
        emission.for_share(of_rows, share, lambda row, n: emitter.emit(batch, row, n, following))

    if config.packs_first:
        with emission.opaque_block("attention"):
            emitter.make_shelves(sets)
            pieces = emitter.k.pieces + emitter.v.pieces
            with tasks(sets * pieces, name="pack") as task:
                emitter.pack_piece(bind(I.floordiv(task, pieces)), bind(I.floormod(task, pieces)))
            with tasks(problem.batches * share_count) as task:
                batch = bind(I.floordiv(task, share_count))
                emitter.take(bind(I.floordiv(batch, group)))
                emitter.allocate(of_rows[0].size)
                attend(task, batch, tirx.Min(batch + 1, problem.batches - 1))
        return
    with tasks(sets * share_count) as task:
        shared = I.floordiv(task, share_count)
        following = tirx.Min(shared + 1, sets - 1)
        emitter.pack(shared)
        emitter.allocate(of_rows[0].size)
        if group == 1:
            attend(task, shared, following)
            return
        with I.serial(group) as member:
            attend(task, shared * group + member, following * group + member)


class Attention(template.Template[AttentionConfig]):
    """softmax(q k^T * scale + mask) v in one kernel."""

    name = "attention"
    config_type = AttentionConfig
    default_config = staticmethod(configs.default_config)
    space = staticmethod(configs.space)
    check = staticmethod(configs.check)
    at_run_time = staticmethod(at_run_time)
    nests = staticmethod(nests)
    products = staticmethod(products)

    def estimate(self, region: Region, config: AttentionConfig, machine: Machine) -> float:
        """Cycles of one attention's products."""
        return configs.estimated_cycles(AttentionProblem(region), config, machine)

    def why_vectors(self, region: Region, config: AttentionConfig, machine: Machine) -> str:
        """Why the products stay on vectors."""
        return SKINNY if config.skinny else reasons(products(region, config, machine), machine)

    def build(self, region: Region, config: AttentionConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel."""
        configs.check(region, config, isa)
        if region.is_dynamic:
            return build_dynamic(region, config, isa)
        if config.skinny:
            return build_decode(region, config, isa)
        problem = AttentionProblem(region)
        kernels = configs.kernels_of(config)
        of_rows = row_shares(problem.m, config.row_shares, row_unit(kernels))
        with emission.kernel_function("attention") as builder:
            parameters = emission.input_parameters(region)
            c = emission.tensor_parameter("C", region.output)
            of_scores, of_product, sink = problem.split(parameters[3:])
            buffers = problem.views((*parameters[:3], c, *sink))
            parts = (problem.scores, of_scores), (problem.product, of_product)
            pairs = zip(parts, kernels, strict=True)
            epilogues = (Epilogue(*part, kernel.narrow) for part, kernel in pairs)
            emitter = StaticAttentionEmitter(problem, config, isa, buffers, *epilogues)
            on_tiles = tile_kernel(kernels)
            if on_tiles is not None:
                on_tiles.admit()
            with llvm_functions(PREFETCH_LLVM_IR):
                _emit(emitter, of_rows)
        return builder.get()

    def kernel_name(self, region: Region, config: AttentionConfig, isa: Isa) -> str:
        """The microkernels' names; with `skinny`, only their multiply-add is used."""
        names = " + ".join(dict.fromkeys((config.scores_kernel, config.product_kernel)))
        return f"skinny {names}" if config.skinny else names

    def flops(self, region: Region) -> int:
        """Multiplications and additions of both products."""
        return AttentionProblem(region).flops

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The parts one after the other, in float64; the result as it is stored."""
        problem = AttentionProblem(region)
        scores, softmax, product = region.parts
        stored = dict(zip("qkv", inputs[:3], strict=True))
        of_scores, of_product, sink = problem.split(inputs[3:])
        q, k, v = (problem.multiplied(name, stored[name]) for name in "qkv")
        q, v = q.reshape(scores.inputs[0].shape), v.reshape(product.inputs[1].shape)
        k = k.swapaxes(-1, -2).reshape(scores.inputs[1].shape)
        value = region_result(scores, [q, k, *of_scores])
        if problem.causal is not None:
            visible = np.tri(problem.m, problem.n, problem.causal, dtype=bool)
            value = np.where(visible, value, -np.inf)
        if sink:
            column = problem.logical(SINK, sink[0]).reshape(*value.shape[:-1], 1)
            value = np.concatenate([value, column], -1)
            softmax = with_columns(softmax, value.shape[-1])
        value = region_result(softmax, [value])[..., : problem.n]
        value = region_result(product, [value, v, *of_product])
        result = np.zeros(region.output.shape, value.dtype)
        view = problem.logical("out", result)
        view[...] = value.reshape(view.shape)
        return result

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        if len(region.parts) != 3:
            return "attention has three parts"
        problem = AttentionProblem(region)
        softmax = problem.softmax
        if softmax.op != "softmax" or softmax.integer("axis") != len(softmax.output.shape) - 1:
            return "the softmax runs along another axis than the keys"
        steps = [step.op for step in softmax.epilogue if step.op != "constant"]
        if softmax.operands or steps not in ([], ["cast"], ["quantize"]):
            return "more than a rounding between softmax and product"
        if region.output.dtype not in RESULT_DTYPES or problem.scores.output.dtype != "float32":
            return f"scores of type {problem.scores.output.dtype}, result {region.output.dtype}"
        for part in (problem.scores, problem.product):
            reason = BATCH_MATMUL.reject(part, isa)
            if reason is not None:
                return reason
            if zero_point_inputs(part):
                return "a zero point that is known only at run time"
        return problem.reject()

    def reject_dynamic(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region with dynamic sizes, or None."""
        problem = AttentionProblem(region)
        if size.is_dynamic((problem.d, problem.e)):
            return "a dynamic head size"
        parts = (problem.scores, problem.product)
        multiplicands = (*problem.scores.inputs, problem.product.inputs[1])
        known = {problem.softmax.output.dtype, region.inputs[0].dtype} <= {"float32", *WIDENED}
        alike = all(
            tensor.dtype == multiplied.dtype or problem.widens(name)
            for name, tensor, multiplied in zip("qkv", region.inputs, multiplicands, strict=False)
        )
        # Operands of one product: integers or floats.
        kinds = ({tensor.dtype in RANGES for tensor in part.inputs[:2]} for part in parts)
        if not (known and alike) or any(len(each) > 1 for each in kinds):
            return "types other than floats or 8-bit integers, with dynamic sizes"
        if any("float16" in multiplied(part) for part in parts):
            return "products of float16, which only AMX tiles multiply"
        together = 2 if "bfloat16" in multiplied(problem.scores) else 1
        if is_integer(problem.scores):
            together = _BYTES
        if problem.d % together:
            return f"a head size that is no multiple of {together}"
        if problem.layouts["k"].column != 1 or problem.layouts["v"].column != 1:
            return "keys or values whose columns are not contiguous"
        return None


ATTENTION = template.register_template(Attention())
