"""Counts of a kernel: by hand for small kernels, by the operator's formula for templates."""

from __future__ import annotations

import msgspec
import pytest

from tests.tir_schedules.attention_regions import Attention
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.cost.test_nests import matmul
from tests.tvm_hybrid.bench.kernel_times.small_kernels import (
    built,
    machine,
    program_of,
    scaled,
    sums,
    triangle,
)
from tir_schedules.core.template import template_for
from tvm_hybrid.bench.kernel_times.nodes import KernelLoops, Loop
from tvm_hybrid.bench.kernel_times.time import Cycles, kernel_time


def counts(program: KernelLoops) -> dict[str, int]:
    return dict(Cycles(machine()).body(program.body, {}).counts)


def test_sums_in_a_register() -> None:
    found = counts(program_of(sums(64, 10)))
    assert found == {"load": 40, "fma": 40, "products": 640, "store": 4, "loop ends": 4}


def test_a_chain_is_one_product_a_round() -> None:
    program = program_of(sums(64, 10))
    (outer,) = program.body.children
    assert isinstance(outer, Loop)
    (inner,) = outer.body.children
    assert isinstance(inner, Loop) and inner.body.work.chains == {(1, 0)}


def test_what_does_not_change_is_loaded_once() -> None:
    found = counts(program_of(scaled(160)))
    assert found["broadcast"] == 1 and found["load"] == found["vector"] == found["store"] == 10


def test_rounds_of_a_triangle() -> None:
    found = counts(program_of(triangle(9)))
    # One load of x, one of y and one sum in each of 9 * 10 / 2 iterations.
    assert found["vector"] == 45 and found["load"] == 90 and found["store"] == 45


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("shape", [(8, 64, 48), (17, 30, 64), (100, 70, 130)])
def test_products_of_a_matmul(shape: tuple[int, int, int], isa: str) -> None:
    region = matmul(*shape)
    host = machine(isa=isa)
    program = built(region, template_for("matmul").default_config(region, host), isa)
    found = Cycles(host).body(program.body, {}).counts["products"]
    m, k, n = shape
    lanes = host.isa.f32_lanes
    assert found == m * k * -(-n // lanes) * lanes  # the last vector is a full one


def test_products_of_a_matmul_whose_k_is_shared() -> None:
    region, host = matmul(4, 4096, 40), machine(12, isa="avx512")
    config = template_for("matmul").default_config(region, host)
    assert config.threads_k > 1
    found = Cycles(host).body(built(region, config, "avx512").body, {}).counts["products"]
    assert found == 4 * 4096 * 48


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_products_do_not_depend_on_threads(threads: int) -> None:
    region = conv_region((14, 14), 32, 64, (3, 3), padding=(0, 0, 0, 0))
    host = machine(threads)
    program = built(region, template_for("conv2d").default_config(region, host))
    found = kernel_time(program, host).counts["products"]
    assert 2 * found == template_for("conv2d").flops(region)


def test_dot_products_of_integers() -> None:
    region = matmul(32, 64, 64, "int8")
    host = machine(isa="avx512_vnni")
    config = template_for("matmul").default_config(region, host)
    program = built(region, config, "avx512_vnni")
    found = Cycles(host).body(program.body, {}).counts
    assert found["dot"] * 64 == found["products"] == 32 * 64 * 64


def test_tile_products() -> None:
    region = matmul(64, 128, 64, "int8")
    host = machine(isa="amx")
    config = template_for("matmul").default_config(region, host)
    assert config.to_dict()["kernel"].startswith("amx_")
    found = Cycles(host).body(built(region, config, "amx").body, {}).counts
    assert found["tile_product"] == 4 * 4 * 2  # of 16 rows, 16 columns, and 64 elements of K
    assert found["tile_configure"] == found["tile_release"] == 1


def test_attention_is_read() -> None:
    region = Attention(batch=1, heads=4, m=40, n=48, d=32).region
    host = machine(2)
    program = built(region, template_for("attention").default_config(region, host))
    found = kernel_time(program, host).counts["products"]
    # The products, and the multiplications of the softmax.
    assert 2 * found > template_for("attention").flops(region)


def test_attention_whose_threads_pack_first_is_read() -> None:
    """Threads that pack first multiply about as much as tasks that pack for themselves."""
    region = Attention(batch=1, heads=3, m=40, n=48, d=32).region
    host = machine(2)
    config = template_for("attention").default_config(region, host)
    config = msgspec.structs.replace(config, parallel=True, row_shares=4)
    alone = kernel_time(built(region, config, "avx512"), host).counts
    for threads in (0, 2, 7):
        shared = msgspec.structs.replace(config, packs_first=True, threads=threads)
        found = kernel_time(built(region, shared, "avx512"), host).counts
        assert found["products"] == pytest.approx(alone["products"], rel=0.2), threads
