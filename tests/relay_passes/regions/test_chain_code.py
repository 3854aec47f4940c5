"""Chains of dynamic rows copy little code: those that save the most calls for it stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tvm import relax, tirx

from relay_passes.regions.merge_chains import (
    COPIES,
    KERNEL_LINES,
    MOST_GROWTH,
    OTHER_LINES,
    PART_LINES,
    lines_of,
    merge_chains,
)
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import MACHINE, Body, constant, module, regions
from tests.relay_passes.regions.test_merge_chains import emitted, reasons

op = relax.op
BATCH = tirx.Var("batch", "int64")


def widths(x: relax.Expr, sizes: Sequence[int], seed: int = 0) -> relax.Expr:
    """relu(x @ w) of the width of x to each of some widths."""
    for number, n in enumerate(sizes):
        k = int(x.ty.shape[-1])
        x = emitted(op.nn.relu(emitted(op.matmul(x, constant(k, n, seed=seed + number)))))
    return x


def apart(x: relax.Expr) -> relax.Expr:
    """What no chain goes through: the rows of x in another order."""
    return emitted(op.flip(x, axis=0))


def found(body: Body, rows: int | tirx.Var = BATCH) -> tuple[list[str], list[str]]:
    """Chains by the widths of their parts' results, and the reasons of all calls."""
    mod = merge_chains(MACHINE)(partition(MACHINE.isa, [])(module(body, ((rows, 16), "float32"))))
    chains = [
        "-".join(str(part.output.shape[-1]) for part in region.parts)
        for region in regions(mod)
        if region.parts
    ]
    return chains, reasons(mod)


def test_layers_that_are_always_together_are_chains_although_alike() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        for seed in (0, 5, 10):
            x = apart(widths(x, (32, 48, 16), seed))
        return x

    chains, why = found(body)
    assert chains == ["32-48-16"] * 3
    assert not any(COPIES in reason for reason in why)


def test_equal_layers_in_a_row_share_their_kernel() -> None:
    chains, why = found(lambda x: widths(x, (16, 16)))
    assert not chains
    assert sum(COPIES in reason for reason in why) == 1


def test_static_layers_are_chains_whatever_they_copy() -> None:
    assert found(lambda x: widths(x, (16, 16)), rows=12)[0] == ["16-16"]


def test_a_chain_ends_before_it_copies_another_one() -> None:
    """The second chain's kernel is the first one's; the normalisation stays apart."""

    def body(x: relax.Expr) -> relax.Expr:
        x = widths(apart(widths(x, (32, 48, 16))), (32, 48, 16), 5)
        return op.nn.layer_norm(x, constant(16, seed=8), constant(16, seed=9), axes=[-1])

    chains, why = found(body)
    assert chains == ["32-48-16"] * 2
    assert [COPIES in reason for reason in why].count(True) == 1


@pytest.mark.parametrize(("others", "chained"), [(2, False), (10, True)])
def test_a_program_may_grow_by_a_share(others: int, chained: bool) -> None:
    """One copy of a product, in a short program and in a long one."""

    def body(x: relax.Expr) -> relax.Expr:
        x = apart(widths(apart(widths(x, (32, 48))), (16,), 2))
        x = apart(widths(x, (32, 64, 16), 4))
        for number in range(others):  # kernels of their own
            x = apart(widths(x, (96 + 16 * number,), 10 + number))
        return x

    copied = PART_LINES - 2 * KERNEL_LINES  # three kernels in place of five
    flips = {48, 16, *(96 + 16 * number for number in range(others))}
    before = (others + 5) * (PART_LINES + KERNEL_LINES) + OTHER_LINES * len(flips)
    assert (copied <= MOST_GROWTH * before) == chained
    assert found(body)[0] == (["32-48", "32-64-16"] if chained else [])


def test_a_part_that_two_chains_have_is_left_out_of_both() -> None:
    """One chain less would free no code; the chain that copies nothing stays."""

    def body(x: relax.Expr) -> relax.Expr:
        x = apart(widths(apart(widths(x, (32, 48))), (16,), 2))
        x = apart(widths(apart(widths(x, (32, 64))), (16,), 4))
        return widths(x, (80, 112), 6)

    assert found(body)[0] == ["80-112"]


def test_lines_are_those_of_all_parts() -> None:
    before = partition(MACHINE.isa, [])(
        module(lambda x: widths(x, (32, 48)), ((BATCH, 16), "float32"))
    )
    one, _ = regions(before)
    (two,) = regions(merge_chains(MACHINE)(before))
    assert lines_of(one) == PART_LINES + KERNEL_LINES
    assert lines_of(two) == 2 * PART_LINES + KERNEL_LINES
