"""Predicts the time of AMX kernels, without measuring or running anything.

The numbers come from a model of the processor (`microkernels.amx.scoreboard`) and of its caches
(`tir_schedules.cost.amx_cost`). All output must say so: every report carries `LABEL`, and every
field and column with a predicted number says "predicted".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text
from tvm.target import Target

from microkernels.amx.scoreboard import LEVELS
from microkernels.base.errors import TargetError
from microkernels.isa import isa_named
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.machines.machine import Machine
from microkernels.registry import all_microkernels, tile_kernels_for
from relay_passes.lower.lower_regions import choose
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.config import Config
from tir_schedules.core.product_plan import ProductPlan, is_integer
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.cost.amx_cost import EPILOGUE, Prediction, TilePart, amx_blocks, predict
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.epilogue.tile_results import stores_in_place
from tir_schedules.product.zero_points import ZeroPoints

from ..frontend.model_input import import_model
from ..options import CompileOptions, records_of, target_of
from ..targets.resolve import cpu_name, resolve_target

_ADVICE = (
    "products of float32 do not run on AMX tiles (regions with such products: {}); with "
    "--precision bf16 they do, in bfloat16"
)
LABEL = "prediction, not measured"
# Rows, columns and K of BERT-base's layers with 128 tokens, and of squares.
SHAPES = (
    ("projection", 128, 768, 768),
    ("feed-forward up", 128, 3072, 768),
    ("feed-forward down", 128, 768, 3072),
    *(("square", size, size, size) for size in (256, 512, 1024, 2048, 4096)),
)
# Types of A, of B, and of the result after the epilogue.
TYPES = {
    "int8": ("uint8", "int8", "int32"),
    "bf16": ("bfloat16", "bfloat16", "float32"),
    "fp16": ("float16", "float16", "float32"),
}
BLOCK_FIELDS = ("rows", "vectors", "m_block", "k_block")  # fields of a TileConfig
_KERNEL_SIZES = (512, 512, 1024)  # rows, columns and K of a product that represents a kernel


class PredictedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for one product on AMX tiles: one call, the busiest thread's part.

    Attributes
    ----------
    label : str
        Says that it is a prediction.
    name : str
        The operators, or the name of the shape.
    workload : str
        The region's key.
    kernel : str
        The microkernel.
    m, n, k : int
        Rows, columns and K of the thread's part.
    copies : int
        Number of such products in one call, one after the other, on all threads.
    blocks : dict
        rows, vectors, m_block and k_block of the configuration.
    predicted_cycles : float
        Cycles of one product.
    predicted_share_of_peak : float
        Share of the peak, which is one dot product of tiles every 16 cycles.
    predicted_instructions : dict
        Mnemonic -> tile instructions of one product.
    predicted_bytes_loaded : dict
        Level of the memory -> bytes that tile loads fetch from it.
    predicted_bytes_stored : int
        Bytes that tile stores write.
    """

    label: str = LABEL
    name: str
    workload: str = ""
    kernel: str
    m: int
    n: int
    k: int
    copies: int = 1
    blocks: dict[str, int]
    predicted_cycles: float
    predicted_share_of_peak: float
    predicted_instructions: dict[str, int]
    predicted_bytes_loaded: dict[str, int]
    predicted_bytes_stored: int


class Unpredicted(msgspec.Struct, frozen=True, kw_only=True):
    """A region without AMX tiles, or whose order of tiles is not modelled."""

    name: str
    workload: str
    reason: str


class PredictReport(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions for one target.

    Attributes
    ----------
    label : str
        Says that these are predictions.
    cpu : str
        LLVM's name of the CPU.
    model : str
        The model, or "" for the table of shapes.
    kernels : list of PredictedProduct
        Full blocks of every kernel: K = 1024, operands in L2, tiles stored without epilogue.
    products : list of PredictedProduct
        The products of the model or of the table.
    without_prediction : list of Unpredicted
        The other regions of the model.
    advice : str
        How to run more of the model on tiles; "" if there is no advice.
    """

    label: str = LABEL
    cpu: str
    model: str = ""
    kernels: list[PredictedProduct]
    products: list[PredictedProduct]
    without_prediction: list[Unpredicted] = []
    advice: str = ""


def predict_shapes(target: Any = "spr", threads: int = 1) -> PredictReport:
    """Predicts the AMX kernels of a CPU, and a table of shapes with default configurations.

    Parameters
    ----------
    target : str, mapping or tvm.target.Target
        A CPU with AMX.
    threads : int
        Threads that share a product.

    Raises
    ------
    TargetError
        If the target has no AMX.
    """
    resolved, machine = _machine(target, threads)
    products: list[PredictedProduct] = []
    for types, (a, b, out) in TYPES.items():
        if not tile_kernels_for(machine.isa, a, b):
            continue
        for name, m, n, k in SHAPES:
            inputs = Tensor((m, k), a), Tensor((k, n), b, True)
            region = Region(op="matmul", inputs=inputs, output=Tensor((m, n), out))
            config = template_for("matmul").default_config(region, machine)
            name = f"{name} {types}"
            products += _products(region, config, machine, name, epilogue=EPILOGUE)
    return PredictReport(
        cpu=cpu_name(resolved), kernels=predict_kernels(machine), products=products
    )


def predict_model(
    model: Any, options: CompileOptions, threads: int = 1, name: str = "model"
) -> PredictReport:
    """Predicts the products of a model that run on AMX tiles; each distinct region once.

    Parameters
    ----------
    model : Any
        See `tvm_hybrid.compile`.
    options : CompileOptions
        How it is compiled, for a target with AMX.
    threads : int
        Threads of a run.
    name : str
        Name of the model in the report.

    Raises
    ------
    TargetError
        If the target has no AMX.
    TvmHybridError
        See `tvm_hybrid.compile`.
    """
    resolved, machine = _machine(target_of(options), threads)
    mod = import_model(model, options.shapes, options.values).mod
    lookup = records_of(options)
    passes = PipelineOptions(resolved, threads, lookup, **options.code())
    products: list[PredictedProduct] = []
    without: list[Unpredicted] = []
    floats = 0  # regions with float32 products, which tiles cannot compute
    for region in collect_regions(mod, passes):
        config, _ = choose(region, machine, lookup)
        found = list(_products(region, config, machine))
        products += found
        multiplied = template_for(region.op).products(region, config, machine)
        floats += any(each.plan.kernel.a_dtype == "float32" for each in multiplied)
        if not found:
            kernel = template_for(region.op).kernel_name(region, config, machine.isa)
            reason = f"runs on {kernel}, without AMX tiles"
            if "amx_" in kernel:
                reason = f"{kernel}: no model of how {region.op} orders its tiles"
            without.append(Unpredicted(name=_name(region), workload=region.key, reason=reason))
    return PredictReport(
        cpu=cpu_name(resolved),
        model=name,
        kernels=predict_kernels(machine),
        products=products,
        without_prediction=without,
        advice=_ADVICE.format(floats) if floats and options.precision != "bf16" else "",
    )


def predict_kernels(machine: Machine) -> list[PredictedProduct]:
    """Predicts full blocks of a machine's AMX kernels: K = 1024, operands in L2, no epilogue."""
    m, n, k = _KERNEL_SIZES
    found = []
    for kernel in all_microkernels():
        if isinstance(kernel, AmxMicrokernel) and machine.isa.includes(kernel.isa):
            blocks = amx_blocks(kernel, m, n, k, machine)
            plan = ProductPlan(kernel=kernel, m=m, n=n, k=k, **blocks)
            part = TilePart(plan=plan, epilogue=None)
            found.append(_predicted("full blocks", plan, predict(part, machine)))
    return found


def _machine(target: Any, threads: int) -> tuple[Target, Machine]:
    resolved = resolve_target(target)
    machine = Machine.from_target(resolved, threads)
    if not machine.isa.includes(isa_named("amx")):
        raise TargetError(
            f"predictions are about AMX, and {cpu_name(resolved)} has {machine.isa.name}; name a "
            "target such as spr or gnr"
        )
    return resolved, machine


def _products(
    region: Region, config: Config, machine: Machine, name: str = "", epilogue: int | None = None
) -> Iterator[PredictedProduct]:
    """Predicts a region's products on AMX tiles, without an attention's softmax; `name` and
    `epilogue` override those that the region's operators give."""
    for product in template_for(region.op).products(region, config, machine):
        plan, part, kernel = product.plan, product.part, product.plan.kernel
        if not isinstance(kernel, AmxMicrokernel) or not product.copies:
            continue
        in_place = stores_in_place(part, kernel)
        # Whether zero points make the accumulators start with other values than zero. Terms that
        # differ by row are added when results are stored, unless tiles are stored in place, or the
        # product belongs to an attention.
        started = False
        if is_integer(part):
            zero_points = ZeroPoints.of(part, kernel)
            started = zero_points.needs_column_sums
            if zero_points.needs_row_sums:
                started = region.op == "attention" or in_place
        # Operations on every vector of results; None if tiles are stored in place.
        operations = epilogue
        if epilogue is None and not in_place:
            operations = Epilogue(part, ()).cost
        fetches = part.op == "matmul"
        tiles = TilePart(plan=plan, started=started, epilogue=operations, fetches=fetches)
        label = name or (_name(part) if part is region else f"{_name(part)}, of {region.op}")
        prediction = predict(tiles, machine)
        yield _predicted(label, plan, prediction, product.copies, region.key)


def _predicted(
    name: str, plan: ProductPlan, found: Prediction, copies: int = 1, workload: str = ""
) -> PredictedProduct:
    kernel = plan.kernel
    assert isinstance(kernel, AmxMicrokernel)
    blocks = {field: getattr(plan, field) for field in BLOCK_FIELDS}
    return PredictedProduct(
        name=name,
        workload=workload,
        kernel=kernel.name,
        m=plan.m,
        n=plan.n,
        k=plan.k,
        copies=copies,
        blocks={**blocks, "rows": min(plan.rows, plan.m)},
        predicted_cycles=round(found.cycles),
        predicted_share_of_peak=round(found.share, 4),
        predicted_instructions=found.counts.named(kernel.product),
        predicted_bytes_loaded=found.bytes_loaded,
        predicted_bytes_stored=found.bytes_stored,
    )


def _name(region: Region) -> str:
    """Names the operators of a region, as decisions do."""
    steps = [step.op for step in region.epilogue if step.op not in ("constant", "item")]
    return " + ".join([region.op, *steps])


def predict_tables(report: PredictReport) -> list[Table]:
    """Makes tables of the kernels, the products, and the regions without a prediction."""
    about = report.model or "layers of BERT-base with 128 tokens, and squares,"
    tables = [
        _table(f"AMX kernels on {report.cpu}, full blocks, K = 1024", report.kernels),
        _table(f"{about} on {report.cpu}, one thread's part of each product", report.products),
    ]
    if report.without_prediction:
        left = Table(title="without a prediction", title_justify="left")
        for column in ("region", "why"):
            left.add_column(column, overflow="fold")
        for region in report.without_prediction:
            left.add_row(Text(region.name), Text(region.reason))
        tables.append(left)
    return tables


def _table(title: str, products: Sequence[PredictedProduct]) -> Table:
    table = Table(title=f"{title}: {LABEL}", title_justify="left", caption=LABEL)
    table.add_column("product", overflow="fold")
    for column in ("kernel", "m x n x k"):
        table.add_column(column, no_wrap=True)
    for column in ("cycles", "% of peak", "loads", "TDPs", "stores"):
        table.add_column(f"predicted\n{column}", justify="right", no_wrap=True)
    table.add_column(f"predicted bytes\n{'/'.join(LEVELS)}", justify="right", no_wrap=True)
    for product in products:
        counts = product.predicted_instructions
        times = f"{product.copies} x " if product.copies > 1 else ""
        size = f"{times}{product.m}x{product.n}x{product.k}"
        cells = [f"{product.predicted_cycles:.0f}", f"{product.predicted_share_of_peak:.0%}"]
        multiplied = sum(count for name, count in counts.items() if name.startswith("tdp"))
        cells += map(str, (counts["tileloadd"], multiplied, counts["tilestored"]))
        loaded = "/".join(_bytes(product.predicted_bytes_loaded[level]) for level in LEVELS)
        table.add_row(Text(product.name), Text(product.kernel), size, *cells, loaded)
    return table


def _bytes(count: int) -> str:
    """Formats a number of bytes in two or three digits."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")):
        if count >= unit:
            value = count / unit
            return f"{value:.1f}{letter}" if value < 10 else f"{value:.0f}{letter}"
    return str(count)
