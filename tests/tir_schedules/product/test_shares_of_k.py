"""Threads that split K: right in pools of any size, on any number of cores."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import get_global_func

from microkernels.base.errors import ConfigError
from microkernels.base.tvm_compat.runtime import configure_threads
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.guard import guarded
from tests.tir_schedules import integer_regions
from tests.tir_schedules.on_tiles import on_tiles
from tests.tir_schedules.run_region import (
    ISAS,
    bias_relu,
    compiled,
    dtype_named,
    expected,
    highest_native,
    machine_for,
    packed,
    random_inputs,
)
from tests.tvm_hybrid.small_models import run_python
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.product.matmul import MATMUL
from tvm_hybrid.runtime.feeds import tensor_of

CALLS = 20  # of a kernel: each time threads finish in another order


def f32_region(m: int = 3, n: int = 40, k: int = 1030, dtype: str = "float32") -> Region:
    return Region(
        op="matmul",
        inputs=(Tensor((m, k), dtype), Tensor((k, n), dtype, True)),
        operands=(Tensor((n,), "float32"),),
        epilogue=bias_relu(),
        output=Tensor((m, n), "float32"),
    )


def int8_region() -> Region:
    return integer_regions.matmul_region((5,), 515, 40, "uint8", "int8", 3, "input")


def weight_only_region(m: int = 2, k: int = 528) -> Region:
    n = 40
    weight, scale = Tensor((k, n), "uint8", True), Tensor((k // 16, n), "float32", True)
    return Region(
        op="weight_only_matmul",
        inputs=(Tensor((m, k), "float32"), weight, scale),
        output=Tensor((m, n), "float32"),
        attrs={"bits": 4, "block": 16, "zero_point": 8.0},
    )


def shared(region: Region, isa: str, threads: int) -> Config:
    """The default configuration, with two chunks of columns and K split among the other threads."""
    template = template_for(region.op)
    fields = template.default_config(region, machine_for(isa)).to_dict()
    grid = {"threads_m": 1, "threads_n": 2, "threads_k": max(2, threads // 2)}
    return template.config_type.from_dict({**fields, **grid})


def check(region: Region, isa: str, config: Config) -> None:
    """Calls a kernel several times; integer results are exact."""
    template, machine = template_for(region.op), machine_for(isa)
    arrays = random_inputs(region)
    kernel = compiled(template.build(region, config, machine.isa), isa)
    inputs = [tensor_of(guarded(x)) for x in packed(region, config, machine.isa, arrays)]
    wanted = expected(region, arrays)
    first = None
    for _ in range(CALLS):
        found = guarded(np.zeros(region.output.shape, dtype_named(region.output.dtype)))
        kernel(*inputs, tensor_of(found))
        if found.dtype.kind == "i":
            np.testing.assert_array_equal(found, wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
        # Chunks are added in one order, whichever thread is last.
        first = found if first is None else first
        np.testing.assert_array_equal(found, first)


def all_types(threads: int) -> None:
    """Products of every type, in this process, with a pool of this many threads."""
    assert configure_threads(get_global_func, threads) == threads
    isa = highest_native(ISAS)
    for region in (f32_region(), int8_region(), weight_only_region(), f32_region(dtype="bfloat16")):
        check(region, isa, shared(region, isa, threads))


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [3, 7, 56, 128])
def test_in_a_pool_of_many_threads(threads: int) -> None:
    code = f"from {__name__} import all_types\nall_types({threads})\nprint('right')"
    done = run_python(code, TVM_NUM_THREADS=str(threads), TVM_THREAD_POOL_SPIN_COUNT="0")
    assert done.stdout.split() == ["right"], done.stderr


@pytest.mark.parametrize("k", [128, 192])
@pytest.mark.isa("amx")
def test_on_tiles(k: int) -> None:
    region = integer_regions.matmul_region((20,), k, 40, "uint8", "int8", 3, "input")
    check(region, "amx", on_tiles(region, threads_m=2, threads_k=2))


def test_an_incomplete_tile_of_k_is_not_shared() -> None:
    region = integer_regions.matmul_region((20,), 100, 40)
    with pytest.raises(ConfigError, match=r"threads_k=2.*incomplete tile"):
        MATMUL.check(region, on_tiles(region, threads_k=2), isa_named("amx"))


@pytest.mark.parametrize("region", [f32_region(4, 40, 4096), weight_only_region(8, 4096)], ids=str)
def test_the_space_shares_k_sparingly(region: Region) -> None:
    template, machine = template_for(region.op), Machine("znver4", isa_named("avx512"), 16)
    configs = list(template.space(region, machine))
    grids = {(c.threads_m, c.threads_n, c.threads_k) for c in configs if c.threads_k > 1}
    assert 1 <= len(grids) <= 12
    for config in configs:
        template.check(region, config, machine.isa)
