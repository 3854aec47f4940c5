"""A configuration as a schedule: TVM's own program, tiled around one of our microkernels.

Before

    for i, j, k in T.grid(128, 512, 384): ...             # the product
    for i, j in T.grid(128, 512): ...                     # bias, relu, ...

After

    for j_panel, i_tile in T.grid(16, 16):
        tile[...] = 0
        avx512_f32_8x32(tile, x[8 rows], w[..., 32 columns])
        result[8 rows, 32 columns] = relu(tile + bias)

The microkernel is a tensor intrinsic (microkernels/tensorize/tensor_intrin.py). The trace has only
its name, which must be registered where the trace is applied: `metaschedule.register_intrinsics`.
"""

from __future__ import annotations

import re
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from microkernels.base.errors import ConfigError
from microkernels.registry import microkernel_named
from microkernels.tensorize.tensor_intrin import register_tensor_intrin
from tir_schedules.core.config import Config

from .tiling import Block, ProgramAnchor, Tiling, read_anchor, tiling_of

Loop = Any
_INTRINSIC = re.compile(r"tvm_hybrid\.(\w+)\.(\d+)x(\d+)x(\d+)")
_WEIGHT = 1  # the anchor's second input


def schedule_product(schedule: Schedule, config: Config, sampled: bool = False) -> Tiling:
    """Applies a configuration to a program with one product, or one convolution, and its epilogue.

    Parameters
    ----------
    schedule : Schedule
        The schedule of a program that `workload_of` wrote, or of a similar one; it is changed.
    config : Config
        Of the template "matmul", "batch_matmul" or "conv2d".
    sampled : bool
        Whether block sizes are decisions that MetaSchedule may change; the configuration's sizes
        are the initial values.

    Returns
    -------
    Tiling
        The tiles of the schedule.

    Raises
    ------
    ConfigError
        If no schedule expresses the configuration; the given one may be partly changed by then.
    """
    anchor = read_anchor(schedule)
    tiling = tiling_of(config, anchor.m, anchor.n, anchor.k, anchor.may_pad)
    if anchor.dtypes[1] == "bfloat16":
        if anchor.padded or anchor.stride > 1:
            raise ConfigError("bfloat16 windows: TVM cannot lower a padded copy that it makes")
        if tiling.kernel.kr > 1 and not anchor.constant:
            raise ConfigError("bfloat16 in groups: TVM cannot lower a packed copy that it makes")
    block = anchor.block
    if anchor.stride > 1:
        # Reorder the input (its padded copy, or a new copy) so that the positions which one tap
        # reads for neighbouring windows are adjacent: then the rows of a tile are adjacent.
        if not schedule.get_producers(block):
            schedule.cache_read(block, 0, "global")
        schedule.transform_layout(
            block,
            ("read", 0),
            lambda n, y, x, c: (n, y, x % anchor.stride, x // anchor.stride, c),
            assume_injective_transform=True,
        )
    sizes = (anchor.m, tiling.rows), (anchor.n, tiling.columns), (anchor.k, tiling.k)
    if any(extent % tile for extent, tile in sizes):
        schedule.pad_einsum(block, [*[1] * anchor.leading, *(tile for _, tile in sizes)])
    packed = _pack_weight(schedule, block, tiling, anchor.constant)
    epilogue = _inline_epilogue(schedule, block)
    # Padding and packing run on all threads, vectorised if the last loop allows.
    weight = None if packed is None else schedule.get(packed).name_hint
    copies = _upstream(schedule, block)
    for copy in schedule.get_child_blocks(schedule.get_sblock("root")):
        name = schedule.get(copy).name_hint
        if name not in copies:
            continue
        if name != weight or tiling.kernel.kr == 1:
            _vectorize(schedule, copy, tiling)
        if tiling.parallel:
            schedule.parallel(schedule.get_loops(copy)[0])
    _tile(schedule, anchor, tiling, epilogue, sampled)
    return tiling


def register_intrinsic(name: str) -> bool:
    """Registers the tensor intrinsic that a trace names; False if the name is not one of ours."""
    match = _INTRINSIC.fullmatch(name)
    if match is None:
        return False
    rows, columns, k = (int(number) for number in match.groups()[1:])
    register_tensor_intrin(microkernel_named(match[1]), rows, columns, k)
    return True


def _pack_weight(schedule: Schedule, block: Block, tiling: Tiling, constant: bool) -> Block | None:
    """Adds the block that packs the weight into panels; None if tiles read the weight in place."""
    kr, columns = tiling.kernel.kr, tiling.columns
    if kr == 1 and not constant:  # kernels with kr = 1 can read panels in place
        return None
    weight = schedule.get(block).reads[_WEIGHT].source
    rank = len(weight.shape)
    padding = [
        producer
        for producer in schedule.get_producers(block)
        if schedule.get(producer).writes[0].source.same_as(weight)
    ]
    copy = padding[0] if padding else None
    if copy is None:
        copy = schedule.cache_read(block, _WEIGHT, "global")
    if constant:
        # `SplitLayoutRewritePreproc` takes the packing out of the program.
        schedule.annotate(copy, "meta_schedule.layout_rewrite_preproc", True)

    def panels(*index: tirx.Expr) -> list[tirx.Expr]:
        *outer, k, n = index
        if kr == 1:
            return [*outer, n // columns, k, n % columns]
        return [*outer, n // columns, k // kr, n % columns, k % kr]

    of_rank: Any = {  # an index map has a fixed number of arguments
        2: lambda a, b: panels(a, b),
        3: lambda a, b, c: panels(a, b, c),
        4: lambda a, b, c, d: panels(a, b, c, d),
    }
    schedule.transform_layout(block, ("read", _WEIGHT), of_rank.get(rank, panels))
    return copy


def _inline_epilogue(schedule: Schedule, anchor: Block) -> Block | None:
    """Inlines all that follows the anchor into one block; None if nothing follows."""
    root = schedule.get_sblock("root")
    anchor_name = schedule.get(anchor).name_hint
    before = _upstream(schedule, anchor)
    outputs = [schedule.get(block).name_hint for block in schedule.get_output_blocks(root)]
    if len(outputs) != 1:
        raise ConfigError(f"{len(outputs)} results")
    last = None
    for block in schedule.get_child_blocks(root):
        name = schedule.get(block).name_hint
        if name == anchor_name or name in before:
            continue
        if name in outputs:
            last = block
        else:
            schedule.compute_inline(block)
    return last


def _upstream(schedule: Schedule, block: Block) -> set[str]:
    """Names of the blocks that a block depends on."""
    found: set[str] = set()
    for producer in schedule.get_producers(block):
        found |= {str(schedule.get(producer).name_hint)} | _upstream(schedule, producer)
    return found


def _tile(
    schedule: Schedule, anchor: ProgramAnchor, tiling: Tiling, epilogue: Block | None, sampled: bool
) -> None:
    """Splits and reorders the anchor's loops, moves the epilogue in, inserts the microkernel."""
    loops, leading = schedule.get_loops(anchor.block), anchor.leading
    lead, (i, j), reduction = loops[:leading], loops[leading : leading + 2], loops[leading + 2 :]
    if sampled:
        i_outer, i_inner = schedule.split(i, [None, tiling.rows])
        block, tile = _sampled(schedule, i_outer, tiling.row_tiles)
    else:
        block, tile, i_inner = schedule.split(i, [None, tiling.row_tiles, tiling.rows])
    panel, j_inner = schedule.split(j, [None, tiling.columns])
    k_outer, k_inner = schedule.split(reduction[-1], [None, tiling.k])
    taps = reduction[:-1]
    whole = int(schedule.get(k_outer).extent) == 1
    if taps:  # a panel of the weight stays in cache for a band of lines
        *batches, line = lead
        lines = tiling.lines_of(int(schedule.get(line).extent))
        split = _sampled(schedule, line, lines) if sampled else schedule.split(line, [None, lines])
        band, line = split
        outer, inner = [*batches, band, panel], [line, block, tile, *taps, k_outer]
    elif whole:
        outer, inner = [*lead, block, panel], [tile, k_outer]
    else:  # the accumulators of a panel are visited once for each block of K
        outer, inner = [*lead, block, panel], [k_outer, tile]
    schedule.reorder(*outer, *inner, i_inner, j_inner, k_inner)
    if epilogue is not None:
        schedule.reverse_compute_at(epilogue, tile if whole or taps else panel)
        _vectorize(schedule, epilogue, tiling)
    if tiling.parallel:  # before decompose_reduction: only then does TVM see independent blocks
        schedule.parallel(schedule.fuse(*outer))
    first = taps[0] if taps else k_outer
    _vectorize(schedule, schedule.decompose_reduction(anchor.block, first), tiling)
    name = register_tensor_intrin(tiling.kernel, tiling.rows, tiling.columns, tiling.k)
    schedule.tensorize(i_inner, name)


def _sampled(schedule: Schedule, loop: Loop, size: int) -> list[Loop]:
    """Splits a loop into blocks of `size` passes; the size is a decision of the search."""
    whole = int(schedule.get(loop).extent)
    decision = [whole // size, size]
    return schedule.split(loop, schedule.sample_perfect_tile(loop, 2, whole, decision))


def _vectorize(schedule: Schedule, block: Block, tiling: Tiling) -> None:
    """Vectorises the last loop if its extent is a multiple of the vector length."""
    last = schedule.get_loops(block)[-1]
    if int(schedule.get(last).extent) % tiling.kernel.lanes == 0:
        schedule.vectorize(schedule.split(last, [None, tiling.kernel.lanes])[-1])
