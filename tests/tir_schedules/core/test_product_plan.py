"""ProductPlan and Panels: cuts without gaps, and what is packed lies where kernels read it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.registry import microkernel_named
from tir_schedules.core.blocking import Panels
from tir_schedules.core.product_plan import ProductPlan

KERNELS = ("avx2_f32_4x24", "avx512_f32_8x48", "avx512_vnni_u8s8s32_6x64", "amx_u8s8s32_32x32")


@st.composite
def plans(draw: st.DrawFn) -> ProductPlan:
    kernel = microkernel_named(draw(st.sampled_from(KERNELS)))
    m, n, k = (draw(st.integers(1, 200)) for _ in range(3))
    runs = draw(st.integers(1, 3))
    return ProductPlan(
        kernel=kernel,
        m=m,
        n=n,
        k=k,
        rows=draw(st.integers(1, kernel.mr)),
        vectors=draw(st.integers(1, kernel.vectors)),
        m_block=draw(st.integers(1, 200)),
        k_block=draw(st.integers(1, 200)),
        threads_m=draw(st.integers(1, 4)),
        threads_n=draw(st.integers(1, 4)),
        threads_k=draw(st.integers(1, 4)) if runs == 1 else 1,
        runs=runs,
        k_align=draw(st.sampled_from((1, 2, 8))),
    )


@given(plans())
def test_cuts_leave_no_gap(plan: ProductPlan) -> None:
    end = 0
    for start, size in plan.pieces:
        assert start == end and size > 0
        assert start % math.lcm(plan.k_align, plan.kernel.depth) == 0
        end = start + size
    assert end == plan.steps
    end = 0
    for rows, groups in plan.bands(plan.m):
        assert rows <= plan.rows
        for group in groups:
            assert group.start == end and group.count > 0
            end += group.count * group.size
    assert end == plan.m
    end = 0
    for group in plan.k_shares:
        assert group.start == end and end % plan.k_unit == 0 and group.count and group.size
        end += group.count * group.size
        assert sum(size for _, size in plan.pieces_of(group.size)) == group.size
        assert max(size for _, size in plan.pieces_of(group.size)) <= plan.longest_piece
    assert end == plan.steps
    assert sum(plan.panels.widths) == plan.n_vectors
    assert max(plan.panels.widths) <= plan.vectors


@given(plans())
def test_panels_do_not_cross_the_shares_of_threads(plan: ProductPlan) -> None:
    starts = set(np.cumsum([0, *plan.panels.widths]).tolist())
    for group in plan.column_shares:
        assert {group.start + i * group.size for i in range(group.count)} <= starts


@given(plans())
def test_the_busiest_thread_has_the_largest_share(plan: ProductPlan) -> None:
    busiest = plan.busiest
    assert busiest.m == plan.row_shares[0].size
    assert busiest.n_vectors == plan.column_shares[0].size
    assert busiest.steps == plan.k_shares[0].size
    assert busiest.threads_m == busiest.threads_n == busiest.threads_k == 1


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("runs", [1, 3])
def test_every_element_lies_where_kernels_read_it(name: str, runs: int) -> None:
    kernel = microkernel_named(name)
    lanes, kr, k, n = kernel.lanes, kernel.kr, 7, 3 * kernel.lanes - 5
    panels = Panels(kernel, k, n, (2, 1), runs)
    matrix = np.arange(1, runs * k * n + 1, dtype=np.int32).reshape(runs * k, n)
    packed = panels.pack(matrix)
    assert packed.shape == (panels.size,) and panels.columns == 3 * lanes
    found = np.zeros((panels.steps * kr, panels.columns), np.int32)
    first = 0
    for width in panels.widths:
        for step in range(panels.steps):
            for j in range(width):
                start = panels.start(first, width, step, j)
                group = packed[start : start + lanes * kr].reshape(lanes, kr)
                column = (first + j) * lanes
                found[step * kr : (step + 1) * kr, column : column + lanes] = group.T
        first += width
    each = found.reshape(runs, -1, panels.columns)
    assert np.array_equal(each[:, :k, :n].reshape(matrix.shape), matrix)
    assert not each[:, k:].any() and not each[:, :, n:].any()
