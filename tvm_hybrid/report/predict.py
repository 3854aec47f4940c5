"""What AMX kernels are predicted to do; nothing here is measured, and nothing is run.

The numbers come from a model of the processor (`microkernels.amx_scoreboard`) and of its caches
(`tir_schedules.amx_prediction`). Whoever shows them says so: every report carries `LABEL`, and
every field and column with a predicted number says "predicted".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from tvm.target import Target

from microkernels.amx_tiles import AmxMicrokernel
from microkernels.errors import TargetError
from microkernels.isa import isa_named
from microkernels.microkernel import all_microkernels, microkernel_named
from relay_passes.pipeline import PipelineOptions, collect_regions
from relay_passes.select_configs import choose
from tir_schedules.amx_cost import amx_blocks
from tir_schedules.amx_prediction import EPILOGUE, Prediction, TilePart, predict
from tir_schedules.batch_operands import BatchProblem
from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.matmul_config import MatmulConfig, dimensions
from tir_schedules.mlp_chain_config import MlpChainConfig
from tir_schedules.region import Region, Tensor
from tir_schedules.template import template_for
from tir_schedules.tile_config import TileConfig
from tir_schedules.zero_points import ZeroPoints, is_integer

from ..model_input import import_model
from ..targets import cpu_name, resolve_target
from ..tuning.records import RecordStore

LABEL = "prediction, not measured"
# Rows, columns and K of the layers of BERT-base with 128 tokens, and of squares.
SHAPES = (
    ("projection", 128, 768, 768),
    ("feed-forward up", 128, 3072, 768),
    ("feed-forward down", 128, 768, 3072),
    *(("square", size, size, size) for size in (256, 512, 1024, 2048, 4096)),
)
# Types of A, of B, and of the result behind an epilogue.
TYPES = {"int8": ("uint8", "int8", "int32"), "bf16": ("bfloat16", "bfloat16", "float32")}
BLOCK_FIELDS = ("rows", "vectors", "m_block", "k_block")  # of a TileConfig
_KERNEL_SIZES = (512, 512, 1024)  # rows, columns and K of the products that stand for kernels


class PredictedProduct(msgspec.Struct, frozen=True, kw_only=True):
    """One product on AMX tiles: one call, the busiest thread's part.

    Attributes
    ----------
    label : str
        That it is a prediction.
    name : str
        The region, or what the shape stands for.
    kernel : str
        The microkernel.
    m, n, k : int
        Rows, columns and K of the thread's part.
    copies : int
        How many such products one call does, one after the other, on all threads.
    blocks : dict
        rows, vectors, m_block and k_block of the configuration.
    predicted_cycles : float
        Of one product.
    predicted_share_of_peak : float
        Of one dot product of tiles every 16 cycles.
    predicted_instructions : dict
        Tile instructions of one product, by mnemonic.
    predicted_bytes_loaded : dict
        What tile loads fetch, by level of the memory.
    predicted_bytes_stored : int
        What tile stores write.
    """

    label: str = LABEL
    name: str
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


class PredictReport(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions for one target.

    Attributes
    ----------
    label : str
        That they are predictions.
    cpu : str
        LLVM's name of the CPU.
    model : str
        The model, or "" for the table of shapes.
    kernels : list of PredictedProduct
        Every kernel's full blocks: K = 1024, the operands in L2, tiles stored without epilogue.
    products : list of PredictedProduct
        The products of the model or of the table.
    without_prediction : dict
        Regions of the model that AMX tiles have no part in, or that are not modelled: why.
    """

    label: str = LABEL
    cpu: str
    model: str = ""
    kernels: list[PredictedProduct]
    products: list[PredictedProduct]
    without_prediction: dict[str, str] = {}


def predict_shapes(target: Any = "spr", threads: int = 1) -> PredictReport:
    """Predictions for every AMX kernel, and for a table of shapes in their default configuration.

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
        for name, m, n, k in SHAPES:
            region = Region(
                op="matmul",
                inputs=(Tensor((m, k), a), Tensor((k, n), b, True)),
                output=Tensor((m, n), out),
            )
            config = template_for("matmul").default_config(region, machine)
            name = f"{name} {types}"
            products += _products(region, config, machine, name, epilogue=EPILOGUE)
    return PredictReport(
        cpu=cpu_name(resolved), kernels=predict_kernels(machine), products=products
    )


def predict_model(
    model: Any,
    target: Any = "spr",
    shapes: Mapping[str, Any] | None = None,
    threads: int = 1,
    precision: str = "auto",
    fusion: str = "coarse",
    records: Any = None,
    name: str = "model",
) -> PredictReport:
    """Predictions for the products of a model that run on AMX tiles; each distinct region once.

    Parameters
    ----------
    model, target, shapes, precision, fusion, records
        As for `tvm_hybrid.compile`; the target has AMX.
    threads : int
        Threads of a run.
    name : str
        What the report calls the model.

    Raises
    ------
    TargetError
        If the target has no AMX.
    TvmHybridError
        As `tvm_hybrid.compile`.
    """
    resolved, machine = _machine(target, threads)
    mod, _, _ = import_model(model, shapes)
    lookup = RecordStore(records).lookup
    options = PipelineOptions(resolved, threads, lookup, precision=precision, fusion=fusion)
    products: list[PredictedProduct] = []
    without: dict[str, str] = {}
    for region in collect_regions(mod, options):
        config, _ = choose(region, machine, lookup)
        found = list(_products(region, config, machine, region.key))
        products += found
        if not found:
            without[region.key] = _reason(region, config, machine)
    return PredictReport(
        cpu=cpu_name(resolved),
        model=name,
        kernels=predict_kernels(machine),
        products=products,
        without_prediction=without,
    )


def predict_kernels(machine: Machine) -> list[PredictedProduct]:
    """Every AMX kernel's full blocks: K = 1024, the operands in L2, no epilogue."""
    m, n, k = _KERNEL_SIZES
    found = []
    for kernel in all_microkernels():
        if not isinstance(kernel, AmxMicrokernel):
            continue
        chosen = amx_blocks(kernel.layout, m, n // kernel.lanes, kernel.steps(k), machine)
        blocks = dict(zip(BLOCK_FIELDS, itemgetter(*BLOCK_FIELDS)(chosen), strict=True))
        part = _tile_part(kernel, (m, n, k), blocks, started=False, epilogue=None)
        found.append(_predicted("full blocks", kernel, (m, n, k), blocks, predict(part, machine)))
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
    region: Region, config: Config, machine: Machine, name: str, epilogue: int | None = None
) -> Iterator[PredictedProduct]:
    """The products of a region that run on AMX tiles as the matmul templates emit them."""
    for part, found, share in _parts(region, config):
        kernel = microkernel_named(found.kernel)
        if not isinstance(kernel, AmxMicrokernel):
            continue
        (m, n, k), copies = _sizes(part, found, share, kernel.lanes)
        blocks = {field: getattr(found, field) for field in BLOCK_FIELDS}
        blocks["rows"] = min(blocks["rows"], m)
        started = is_integer(part) and _starts(part, kernel)
        operations = _operations(part, kernel) if epilogue is None else epilogue
        tiles = _tile_part(kernel, (m, n, k), blocks, started, operations)
        yield _predicted(name, kernel, (m, n, k), blocks, predict(tiles, machine), copies)


def _tile_part(
    kernel: AmxMicrokernel,
    sizes: tuple[int, int, int],
    blocks: Mapping[str, int],
    started: bool,
    epilogue: int | None,
) -> TilePart:
    """A product of so many rows, columns and K as the model takes it."""
    m, n, k = sizes
    return TilePart(
        layout=kernel.layout,
        m=m,
        n_vectors=math.ceil(n / kernel.lanes),
        steps=kernel.steps(k),
        started=started,
        epilogue=epilogue,
        rows=blocks["rows"],
        vectors=blocks["vectors"],
        m_block=blocks["m_block"],
        k_block=blocks["k_block"],
    )


def _parts(region: Region, config: Config) -> Iterable[tuple[Region, TileConfig, int]]:
    """(product, its configuration, blocks of rows that it is cut into) of a region."""
    if isinstance(config, MlpChainConfig):
        cut = config.row_blocks if config.mode == "rows" else 1
        for part, found in zip(region.parts, config.of_parts(region), strict=True):
            if isinstance(found, MatmulConfig):
                yield part, found, cut
    elif isinstance(config, TileConfig) and region.op in ("matmul", "batch_matmul"):
        yield region, config, 1


def _sizes(
    part: Region, config: TileConfig, row_blocks: int, lanes: int
) -> tuple[tuple[int, int, int], int]:
    """Rows, columns and K of the busiest thread's part, and how many such products there are."""
    if part.op == "batch_matmul":
        problem = BatchProblem(part)
        shares = getattr(config, "row_shares", 1)
        return (math.ceil(problem.m / shares), problem.n, problem.k), problem.batches * shares
    assert isinstance(config, MatmulConfig)
    m, n, k = dimensions(part)
    columns = math.ceil(math.ceil(n / lanes) / config.threads_n) * lanes
    rows = math.ceil(m / row_blocks / config.threads_m)
    return (rows, min(n, columns), k), row_blocks


def _starts(part: Region, kernel: AmxMicrokernel) -> bool:
    """Whether zero points make the accumulators start with something other than zero."""
    zero_points = ZeroPoints.of(part, kernel)
    return zero_points.needs_column_sums or zero_points.needs_row_sums


def _operations(part: Region, kernel: AmxMicrokernel) -> int | None:
    """Operations on every vector of results; None if the tiles are stored in their place."""
    steps = sum(step.op != "constant" for step in part.epilogue)
    whole = part.output.shape[-1] % kernel.lanes == 0
    plain = not part.epilogue and part.output.dtype == kernel.acc_dtype and whole
    return None if plain else steps


def _predicted(
    name: str,
    kernel: AmxMicrokernel,
    sizes: Sequence[int],
    blocks: Mapping[str, int],
    found: Prediction,
    copies: int = 1,
) -> PredictedProduct:
    m, n, k = sizes
    return PredictedProduct(
        name=name,
        kernel=kernel.name,
        m=m,
        n=n,
        k=k,
        copies=copies,
        blocks=dict(blocks),
        predicted_cycles=round(found.cycles),
        predicted_share_of_peak=round(found.share, 4),
        predicted_instructions=found.counts.named(kernel.product),
        predicted_bytes_loaded=found.bytes_loaded,
        predicted_bytes_stored=found.bytes_stored,
    )


def _reason(region: Region, config: Config, machine: Machine) -> str:
    """Why a region of a model has no prediction."""
    kernel = template_for(region.op).kernel_name(region, config, machine.isa)
    if "amx_" in kernel:
        return f"{kernel}: no model of how {region.op} orders its tiles"
    return f"runs on {kernel}, without AMX tiles"
