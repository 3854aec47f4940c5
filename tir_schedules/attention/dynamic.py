"""The kernel of attention for dynamic sizes.

for each attention, or group of attentions that share k and v          tasks of one parallel loop
    one query     K and V are read in place: `decode`. If there are more threads than attentions,
                  and many keys, threads divide the keys of each attention.
    more          pack k and v: panels of whole vectors, padded by repeating the last key
                  for each row block of queries, as high as a register tile
                      scores = q k^T            code for some heights of a tile, chosen by a branch
                      scale, mask, maximum      row by row, from L1
                      softmax                   as for static sizes
                      out = scores v            code for these heights, then one epilogue for all

The scores of a row block with all keys are in cache at once. Padding keys have scores of -inf. If a
mask hides keys, a row block takes those up to the last key that one of its queries sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels import registry
from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import Isa
from microkernels.vector.expressions import Expr, Index, bind, materialise
from microkernels.vector.memory import ADDRESS_LLVM_IR, PREFETCH_LLVM_IR, streaming_llvm_ir
from tir_schedules.core import blocking, emission, extents, placement
from tir_schedules.core.extents import allocated, as_expr, extent
from tir_schedules.core.product_plan import is_integer
from tir_schedules.core.region import Region
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.stored_operand import EqualPanels
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.packed_operand import PackedOperand

from . import caches
from .caches import GrowingCache, Growth
from .config import LEAST_KEYS, SHARE_BYTES, AttentionConfig, kernels_of
from .decode.plan import DecodePlan
from .decode.program import Decode
from .problem import AttentionProblem, bits_of_element, few_queries
from .tiled.product_tiles import ProductTiles
from .tiled.program import AttentionEmitter
from .tiled.scores import ScoreTiles, varies_with_rows
from .tiled.softmax import Matrix


def build_dynamic(
    region: Region, config: AttentionConfig, isa: Isa, growths: Mapping[str, Growth] | None = None
) -> tirx.PrimFunc:
    """The kernel: inputs, output.

    With `growths`, the kernel also writes k and v. Its inputs are then q, past and new k, past and
    new v, operands; its outputs k, v, output.

    Parameters
    ----------
    growths : mapping or None
        "k" and "v", which `reject_growth` does not reject.
    """
    problem, growths = AttentionProblem(region), growths or {}
    with emission.kernel_function("attention") as builder:
        q = emission.tensor_parameter("input0", region.inputs[0])
        pasts = {}
        for name, growth in growths.items():
            past, apart = placement.cache_parameter(f"past_{name}", growth.past)
            pasts[name] = past, emission.tensor_parameter(f"new_{name}", growth.new), apart
        cached = [] if growths else caches.keys_and_values(problem, "input1", "input2")
        operands = emission.input_parameters(region, 3)
        cached = cached or caches.keys_and_values(problem, "k", "v")
        output = emission.tensor_parameter("C", region.output)
        extents.read_extents()
        caches.give_room(problem, cached)
        *given, sink = problem.split(operands)
        buffers = problem.views((q, *(buffer for buffer, _ in cached), output, *sink))
        epilogues = []
        parts = (problem.scores, problem.product), given, kernels_of(config)
        for part, parameters, kernel in zip(*parts, strict=True):
            # Leading dimensions that a part's operands share equally become one dimension.
            seen = extents.flat_rows(part)
            views = extents.operand_views(parameters, part, seen)
            epilogues.append(Epilogue(seen, views, kernel.narrow))
        found = caches.find_seen(problem.scores, given[0])
        if found is not None:
            problem.unseen, problem.seen = None if growths else found.before, found.count
        attention = DynamicAttentionEmitter(problem, config, isa, buffers, *epilogues)
        attention.mask = found
        with llvm_functions(ADDRESS_LLVM_IR if growths else ""):
            for name, growth in growths.items():
                past, new, apart = pasts[name]
                distances = apart, cached["kv".index(name)][1]
                stored = (past, new), buffers[name], distances
                attention.caches[name] = GrowingCache(growth, *stored, isa.f32_lanes)
            attention.emit()
    return builder.get()


def _skips_by_row(problem: AttentionProblem) -> bool:
    """Whether each row block skips the keys after the last one that it sees."""
    number = caches.hiding_mask(problem.scores)
    by_row = number is not None and varies_with_rows(problem.scores, number)
    return by_row and not is_integer(problem.product)  # integers: hidden keys add zero points


def at_run_time(region: Region, config: AttentionConfig) -> str:
    """What is decided at run time, for `explain`."""
    problem = AttentionProblem(region)
    height = min(kernel.mr for kernel in kernels_of(config))
    texts = [f"row blocks of up to {height} queries, packed keys"]
    if _skips_by_row(problem):
        texts[0] += ", each up to the last key that it sees"
    if few_queries(problem) is not None:
        shared = f", divided among {config.key_shares} threads if there are many"
        in_place = "keys read in place" + (shared if config.key_shares > 1 else "")
        is_dynamic = isinstance(problem.m, SymbolicSize)
        texts = [f"one query: {in_place}", f"more: {texts[0]}"] if is_dynamic else [in_place]
    if caches.hiding_mask(problem.scores) is not None:
        texts.append("keys up to the last one that the mask shows")
        if few_queries(problem) is not None:
            texts.append("one query: keys from the first one that the mask shows")
    if config.parallel:
        texts.append(f"up to {config.alone_scores} scores: one thread")
    return "; ".join(texts)


class DynamicAttentionEmitter(AttentionEmitter):
    """Emits the kernel for dynamic sizes.

    Attributes
    ----------
    caches : dict
        "k" and "v", if they grow.
    mask : SeenKeys or None
        What a mask of keys shows.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.caches: dict[str, GrowingCache] = {}
        self.mask: caches.SeenKeys | None = None

    def emit(self) -> None:
        """Emits all tasks."""
        m, few = self.problem.m, few_queries(self.problem)
        if few is None:
            self._many()
        elif not isinstance(m, SymbolicSize):
            self._few(few)
        else:
            known, more = few, few.m + 1
            single = extent(m) == few.m
            emission.branch(single, lambda: self._few(known), lambda: self._many(more))

    def _tasks(self, shares: int = 1) -> Expr:
        """The number of tasks: `shares` for each attention or group that shares k and v."""
        count, group = extent(self.problem.batches), self.problem.group
        if group > 1:
            count = count // group if isinstance(count, int) else I.floordiv(count, group)
        return materialise(as_expr(count) * shares)

    def _for_tasks(self, tasks: Index, body: Callable[[Expr], None], shared: bool = False) -> None:
        """Runs `body(task)` for all tasks; on one thread if they are small and not `shared`."""
        config, problem = self.config, self.problem
        sizes = [as_expr(extent(size)) for size in (problem.batches, problem.m, problem.n)]
        alone = tirx.const(False, "bool")
        if not shared:
            alone = sizes[0] * sizes[1] * sizes[2] <= config.alone_scores
        threads = config.threads if config.parallel else 1
        with emission.dynamic_tasks(threads, alone) as (thread, parts):
            # A thread allocates memory once for all its tasks.
            first, number = emission.share_of(as_expr(tasks), thread, parts)
            with I.serial(number) as place, emission.opaque_block("task"):
                body(bind(first + place))

    # --- few queries -----------------------------------------------------------------------------

    def _few(self, problem: AttentionProblem) -> None:
        """Emits the tasks for few queries."""
        # The kernel for bfloat16 brings the instruction that narrows f32.
        half = registry.kernels_for(self.isa, "bfloat16", "bfloat16")[0]
        rounding = Epilogue(problem.softmax, (), half.narrow)
        epilogues = (self.scores_epilogue, rounding, self.product_epilogue)
        shares = self.config.key_shares

        def decode(grown: Mapping[str, GrowingCache], shares: int = 1) -> Decode:
            given = (problem, self.isa, self.config, self.buffers, grown, shares)
            return Decode(DecodePlan(*given), epilogues)

        def whole() -> None:
            with emission.opaque_block("few"):
                # Products of bfloat16 multiply pairs of keys, so the past is copied before.
                rounded = any("rounded" in part.attrs for part in (problem.scores, problem.product))
                if self.caches and not rounded:
                    self._for_tasks(self._tasks(), decode(self.caches).emit)
                    return
                few = decode({})

                def behind_copies(number: Expr) -> None:
                    self._copy(number)
                    few.emit(number)

                self._for_tasks(self._tasks(), behind_copies)

        streams = streaming_llvm_ir(self.isa.f32_lanes) if self.caches else ""
        with llvm_functions(half.llvm_ir, streams):
            if shares == 1:
                whole()
                return
            with I.If(self._shares_keys(problem)):
                with I.Then(), emission.opaque_block("shares"):
                    self._copy_caches()
                    decode({}, shares).emit_shares(
                        lambda tasks, body, _name: self._for_tasks(tasks, body, shared=True)
                    )
                with I.Else():
                    whole()

    def _shares_keys(self, problem: AttentionProblem) -> Expr:
        """Whether threads divide keys: there are many keys, and fewer attentions than threads."""
        keys, sets = problem.keys, self._tasks()
        if problem.unseen is not None:
            keys = keys - problem.unseen
        k, v = (bits_of_element(problem.tensors[name].dtype) for name in "kv")
        read = (problem.d * k + problem.e * v) // 8
        much = keys * sets >= math.ceil(SHARE_BYTES / read)
        few = tirx.And(keys >= 2 * LEAST_KEYS, sets < self.config.threads)
        return tirx.And(few, much)

    def _copy_caches(self) -> None:
        """Writes the keys and values that grow, by all threads."""
        if self.caches:
            with emission.opaque_block("copies"):
                self._for_tasks(self._tasks(), self._copy)

    def _copy(self, head: Expr) -> None:
        """Writes the keys and values of a head, if they grow."""
        for cache in self.caches.values():
            cache.copy(head)

    # --- many queries ----------------------------------------------------------------------------

    def _many(self, least: int = 1) -> None:
        """Emits the tasks for many queries: at least `least`, or none."""
        self._copy_caches()
        problem, lanes, shares = self.problem, self.lanes, self.config.row_shares
        self.height = min(kernel.mr for kernel in self.kernels)
        # A task's chunk may be a single query.
        least = least if shares == 1 else 1
        self.heights = blocking.tail_heights(self.height, self.config.score_vectors, least)
        self.m, self.n = as_expr(extent(problem.m)), materialise(problem.keys)
        self.keys = materialise(emission.ceil_div(self.n, lanes))
        self.pitch = materialise((self.keys + 1) * lanes)
        if self.config.prefetch:
            sizes = [as_expr(extent(tensor.size)) for tensor in problem.tensors.values()]
            much = self.config.prefetch_elements
            self.is_much = materialise(sum(sizes[1:], sizes[0])) >= much
        with llvm_functions(PREFETCH_LLVM_IR):
            self._for_tasks(self._tasks(shares), self._task)

    def _task(self, task: Expr) -> None:
        """One attention, or a group that shares k and v, or a chunk of their queries."""
        problem, shares, group = self.problem, self.config.row_shares, self.problem.group
        number, part = task, tirx.const(0, "int32")
        if shares > 1:
            number, part = bind(I.floordiv(task, shares)), I.floormod(task, shares)
        row, rows = emission.share_of(self.m, part, shares)
        if self.config.prefetch:
            last = as_expr(extent(problem.batches)) - group
            self.next_rows.begin(materialise(tirx.Min((number + 1) * group, last)))
        first = number if group == 1 else bind(number * group)
        self._prepare(first)
        if group == 1:
            self._attend(first, row, rows)
            return
        with I.serial(group) as member, emission.opaque_block("member"):
            self._attend(bind(first + member), row, rows)

    def _prepare(self, first: Expr) -> None:
        """Packs k and v of an attention; makes the buffers and the emitters of a row block."""
        problem, config, room = self.problem, self.config, allocated(self.problem.n)
        k_base, v_base = (materialise(problem.base(name, first)) for name in "kv")
        keys = self.stored("k", k_base, problem.d, self.n)
        key_panels = EqualPanels(config.score_vectors, self.keys)
        self.k = PackedOperand(keys, self.scores_kernel, key_panels, room=(problem.d, room))
        self.k.pack()
        panels = blocking.balanced(self.out_vectors, config.product_vectors)
        values = self.stored("v", v_base, self.n, problem.e)
        self.v = PackedOperand(values, self.product_kernel, panels, room=(room, problem.e))
        self.v.pack()
        self.add_up()
        height, lanes = self.height, self.lanes
        kernel, at_most = self.product_kernel, (emission.ceil_div(room, lanes) + 1) * lanes
        queries = self.queries(height)
        scores = probabilities = Matrix.allocate(height, self.pitch, "float32", at_most)
        if kernel.a_dtype != "float32":
            dtype = kernel.operand_dtype
            probabilities = Matrix.allocate(height, self.pitch, dtype, at_most)
        self.fused, nowhere = self.fused_scores(self.n, room), tirx.const(0, "int32")
        self.make_band(height, scores, probabilities, self.keys * lanes)
        shape = (height, self.out_vectors * lanes)
        result = I.sblock_alloc_buffer(shape, kernel.acc_dtype, align=64)
        # Keys that a row block sees.
        self.seen = I.sblock_alloc_buffer((1,), "int32") if _skips_by_row(problem) else None
        self.scores = ScoreTiles(self, queries, self.k, nowhere)
        self.product = ProductTiles(self, self.v, result, nowhere, nowhere)

    def _attend(self, batch: Expr, row: Expr, rows: Expr) -> None:
        """The queries of one attention, row block by row block."""
        scores, product, seen, lanes = self.scores, self.product, self.seen, self.lanes
        self.q_base = materialise(self.problem.base("q", batch))
        product.base = materialise(self.problem.base("out", batch))
        scores.batch = product.batch = batch
        if scores.fused is not None:
            scores.fused.begin(bind(batch * self.m))

        def before(start: Expr, height: int) -> None:
            first = bind(row + start)
            n = self._find_seen(batch * self.m + first, height)
            scores.emit_dynamic(first, height, height == self.height, emission.ceil_div(n, lanes))

        def after(start: Expr, height: Expr) -> None:
            first, n = bind(row + start), self.n if seen is None else materialise(seen[0])
            keys = self.keys if seen is None else materialise(emission.ceil_div(n, lanes))

            def beside(r: Expr) -> None:
                product.pad(r, keys)
                if self.config.prefetch:
                    with I.If(self.is_much), I.Then():
                        self.next_rows.fetch_dynamic(first + r)

            if scores.fused is None:
                with I.serial(height) as r, emission.opaque_block("finish"):
                    scores.finish_dynamic(first, r, n)
            self.softmax.emit(height, keys, n, beside)
            heights = self.heights.heights
            emission.choose(height, heights, lambda rows: product.emit_dynamic(rows, keys))
            with I.serial(height) as r, emission.opaque_block("store"):
                product.store_row(first, r)

        emission.for_tiles(rows, self.heights, before, after)

    def _find_seen(self, flat: Expr, rows: int) -> Expr:
        """Keys up to the last one that a row block sees; `flat` counts all queries before it."""
        mask, zero = self.mask, tirx.const(0, "int32")
        if self.seen is None or mask is None:
            return as_expr(self.n)
        region = self.scores_epilogue.region
        shape = region.operands[mask.number].shape[:-1]
        I.buffer_store(self.seen, tirx.const(1, "int32"), [zero])
        with I.serial(rows) as r, emission.opaque_block("seen"):
            indices = self.scores_epilogue.leading(mask.number, bind(flat + r))
            row = zero
            for index, size in zip(indices, shape, strict=True):
                row = row * as_expr(extent(size)) + index
            I.buffer_store(self.seen, tirx.Max(self.seen[zero], mask.ends[row]), [zero])
        return materialise(self.seen[zero])
