"""Chains of dynamic rows copy little code: those that save the most calls for their code stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tvm import relax, tirx

from relay_passes.regions.merge_chains import (
    COPIES,
    KERNEL_LINES,
    MOST_GROWTH,
    MOST_LINES_A_CALL,
    OTHER_LINES,
    PART_LINES,
    lines_of,
    merge_chains,
)
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import MACHINE, Body, bind, constant, module, regions
from tests.relay_passes.regions.test_merge_chains import reasons
from tir_schedules.core.region import nameless_form, region_form

op = relax.op
BATCH = tirx.Var("batch", "int64")


def widths(x: relax.Expr, sizes: Sequence[int], seed: int = 0) -> relax.Expr:
    """relu(x @ w), from the width of x to each of the widths in turn."""
    for number, n in enumerate(sizes):
        k = int(x.ty.shape[-1])
        x = bind(op.nn.relu(bind(op.matmul(x, constant(k, n, seed=seed + number)))))
    return x


def apart(x: relax.Expr) -> relax.Expr:
    """An operator that no chain contains: the rows of x in reverse order."""
    return bind(op.flip(x, axis=0))


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
    """Two equal chains share a kernel; the normalisation after them stays separate."""

    def body(x: relax.Expr) -> relax.Expr:
        x = widths(apart(widths(x, (32, 48, 16))), (32, 48, 16), 5)
        return op.nn.layer_norm(x, constant(16, seed=8), constant(16, seed=9), axes=[-1])

    chains, why = found(body)
    assert chains == ["32-48-16"] * 2
    assert [COPIES in reason for reason in why].count(True) == 1


@pytest.mark.parametrize(("others", "chained"), [(2, False), (10, True)])
def test_a_program_may_grow_by_a_share(others: int, chained: bool) -> None:
    """One copied product for one saved call is too much in a short program, not in a long one."""

    def body(x: relax.Expr) -> relax.Expr:
        x = apart(widths(x, (16, 16)))
        for number in range(others):  # each with its own kernel
            x = apart(widths(x, (96 + 16 * number,), 10 + number))
        return x

    flips = {16, *(96 + 16 * number for number in range(others))}
    before = (others + 1) * (PART_LINES + KERNEL_LINES) + OTHER_LINES * len(flips)
    assert PART_LINES > MOST_LINES_A_CALL
    assert (MOST_GROWTH * before >= PART_LINES) == chained
    assert found(body)[0] == (["16-16"] if chained else [])


def test_few_copies_for_many_calls_stay_in_a_short_program() -> None:
    """Rows of two symbols share the kernel of a product; each of the four chains saves one call."""

    def body(x: relax.Expr, y: relax.Expr) -> list[relax.Expr]:
        chains = [(x, 48, 0), (x, 48, 5), (y, 80, 10), (y, 80, 15)]
        return [widths(apart(z), (32, n), seed) for z, n, seed in chains]

    inputs = (((BATCH, 16), "float32"), ((tirx.Var("others", "int64"), 16), "float32"))
    before = partition(MACHINE.isa, [])(module(body, *inputs))
    after = merge_chains(MACHINE)(before)
    chains = [region for region in regions(after) if region.parts]
    copied = PART_LINES - KERNEL_LINES  # two kernels replace three, for four saved calls
    assert copied <= 4 * MOST_LINES_A_CALL
    assert copied > MOST_GROWTH * (3 * (PART_LINES + KERNEL_LINES) + 4 * OTHER_LINES)
    assert len(chains) == 4
    first = next(region for region in chains if region.output.shape[-1] == 48)
    second = next(region for region in chains if region.output.shape[-1] == 80)
    assert region_form(first.parts[0]) != region_form(second.parts[0])
    assert nameless_form(first.parts[0]) == nameless_form(second.parts[0])


def test_a_part_that_three_chains_have_is_left_out_of_all() -> None:
    """Dropping one chain would free no code; only the chain that copies nothing stays."""

    def body(x: relax.Expr) -> relax.Expr:
        x = apart(widths(apart(widths(x, (32, 48))), (16,), 2))
        x = apart(widths(apart(widths(x, (32, 64))), (16,), 4))
        x = apart(widths(apart(widths(x, (32, 96))), (16,), 5))
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
