"""Says why a product uses vector kernels although the machine has AMX tiles; for `explain`.

    matmul of 1 row     1 row fills 6% of AMX tiles; avx512_vnni_... is estimated 3.1x as fast
    attention of f32    AMX multiplies 8-bit integers and bfloat16, not float32
    part of a chain     part 2: 1 row fills ...

The estimates are those by which the templates choose (amx_cost.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm import DataType

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named, tile_kernels_for
from tir_schedules.core.config import Config
from tir_schedules.core.product_plan import Product, is_integer, quantized_dtype
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .amx_cost import CONFIGURED, why_not_amx

DYNAMIC = "products of a dynamic number of rows run on vectors"


def why_vectors(region: Region, config: Config, machine: Machine) -> str:
    """Why products of a region stay on vectors; "" if none does, or the machine has no tiles.

    Parameters
    ----------
    config : Config
        What was chosen for the region.
    """
    if not machine.isa.includes(isa_named("amx")):
        return ""
    template = template_for(region.op)
    reason = template.why_vectors(region, config, machine)
    if reason is None:
        return reasons(template.products(region, config, machine), machine)
    return reason


def reasons(products: Iterable[Product], machine: Machine) -> str:
    """Why products stay on vectors, each reason once; "" if none does."""
    products = list(products)
    names: dict[str, list[str]] = {}
    for product in products:
        reason = _reason(product, machine)
        if reason is not None:
            names.setdefault(reason, []).append(product.name)
    return "; ".join(
        reason if len(of_reason) == len(products) else f"{' and '.join(of_reason)}: {reason}"
        for reason, of_reason in names.items()
    )


def _reason(product: Product, machine: Machine) -> str | None:
    """Why one product is not computed on tiles; None if it is."""
    plan, types = product.plan, _types(product.part)
    if plan.kernel.by_tiles:
        return None
    if not tile_kernels_for(machine.isa, *types):
        multiplied = " by ".join(dict.fromkeys(types))
        floats = "bfloat16"
        if tile_kernels_for(machine.isa, "float16", "float16"):
            floats = "16-bit floats"
        return f"AMX multiplies 8-bit integers and {floats}, not {multiplied}"
    on_tiles = [cycles for kernel, cycles in product.others() if microkernel_named(kernel).by_tiles]
    if not on_tiles:  # a template's candidates for dynamic rows are all on vectors
        return DYNAMIC
    m, k = product.filled or (plan.m, plan.k)
    k_bytes = k * DataType(types[0]).itemsize
    return why_not_amx(m, min(on_tiles), product.cycles, plan.kernel.name, k_bytes) or CONFIGURED


def _types(region: Region) -> tuple[str, str]:
    """What a product multiplies; if one operand has 16 bits, an f32 one is rounded to it."""
    b = region.inputs[1]
    if is_integer(region):
        return quantized_dtype(region), b.dtype
    b_dtype = str(region.attrs.get("rounded", b.dtype))
    return b_dtype, b_dtype


def why_fewer_threads(config: Config, machine: Machine) -> str:
    """Why a configuration leaves threads idle; "" if it does not, or has no number of them.

    >>> from microkernels.isa import isa_named
    >>> from tir_schedules.rows.normalize import NormalizeConfig
    >>> machine = Machine("znver4", isa_named("avx512"), 8)
    >>> why_fewer_threads(NormalizeConfig(rows=1, threads=6), machine)
    '6 of 8 threads: all are no faster, as a fork takes 1.2 us instead of 1.1'
    """
    used, threads = getattr(config, "threads", None), machine.threads
    if used == 0:  # all, if any
        used = threads if getattr(config, "parallel", True) else 1
    if not isinstance(used, int) or used >= threads:
        return ""
    fork, own = machine.fork_us(threads), machine.fork_us(used)
    instead = f" instead of {own:.1f}" if used > 1 else ""
    return f"{used} of {threads} threads: all are no faster, as a fork takes {fork:.1f} us{instead}"
