"""Pieces of chunks that threads claim: each is taken once, by its thread or by a neighbour."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tvm.tirx.script.builder.ir as I

from microkernels.vector.expressions import Expr
from tests.stand_ins import running
from tests.tir_schedules.run_region import ISAS, highest_native
from tir_schedules.core.emission import kernel_function, tensor_parameter
from tir_schedules.core.extents import as_expr, extent, read_extents
from tir_schedules.core.placement import MOST_SHARES, claimed_shares
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize
from tvm_hybrid.runtime.feeds import tensor_of

SHARES = 8
PIECES = SymbolicSize.of("pieces")


@pytest.mark.parametrize("pieces", [0, 1, 7, 300])
def test_each_piece_is_taken_once(pieces: int) -> None:
    """The result counts how often each piece was taken, and by which task, from 1 on."""
    with kernel_function("claims") as builder:
        taken = tensor_parameter("taken", Tensor((SHARES, PIECES), "int32"))
        by = tensor_parameter("by", Tensor((SHARES, PIECES), "int32"))
        read_extents()
        with claimed_shares(SHARES) as (task, claims):

            def piece(number: Expr) -> None:
                at = [claims.share, number]
                I.buffer_store(taken, taken[claims.share, number] + 1, at)
                I.buffer_store(by, task + 1, at)

            claims.each(as_expr(extent(PIECES)), piece)
    isa = highest_native(ISAS)
    kernel = running.compiled(builder.get().with_attr("global_symbol", "kernel"), isa)["kernel"]
    for _ in range(20):
        count, task = (np.zeros((SHARES, pieces), np.int32) for _ in range(2))
        kernel(tensor_of(count), tensor_of(task))
        assert (count == 1).all()
        distance = (np.arange(SHARES)[:, None] - (task - 1)) % SHARES
        assert (distance < MOST_SHARES).all()
        # If a thread runs several tasks, its first task takes pieces of the later ones.
        if pieces and len(os.sched_getaffinity(0)) < SHARES // 2:
            assert (distance > 0).any()
