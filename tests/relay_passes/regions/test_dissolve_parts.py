"""What only an attention can hold, and no attention holds, becomes ordinary operators again."""

from __future__ import annotations

import pytest
from tvm import IRModule, ir, relax, tirx
from tvm.ir import assert_structural_equal

from microkernels.errors import CompileError
from microkernels.isa import isa_named
from relay_passes.decisions import DecisionLog
from relay_passes.regions.dissolve_parts import dissolve_parts
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import constant, module, regions

op = relax.op
ISA = isa_named("avx2")
BATCH, LENGTH = (tirx.Var(name, "int64") for name in ("batch", "length"))


def products() -> IRModule:
    """Products, and a softmax along an inner axis, which no template has of any size."""

    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        scores = op.add(op.matmul(x, y), relax.const(1.0, "float32"))
        return op.matmul(op.matmul(op.tanh(op.nn.softmax(scores, 1)), x), constant(8, 16))

    return module(body, ((BATCH, LENGTH, 8), "float32"), ((BATCH, 8, LENGTH), "float32"))


def run(mod: IRModule, strict: bool = False) -> tuple[IRModule, DecisionLog]:
    decisions: DecisionLog = []
    passes = ir.transform.Sequential(
        [partition(ISA, decisions, strict), dissolve_parts(ISA, decisions, strict)]
    )
    return passes(mod), decisions


def test_parts_become_operators_again() -> None:
    mod = products()
    formed = partition(ISA, [])(mod)
    ops = [region.op for region in regions(formed)]
    assert ops == ["batch_matmul", "softmax", "batch_matmul", "matmul"]
    after, decisions = run(mod)
    assert [region.op for region in regions(after)] == ["batch_matmul", "batch_matmul", "matmul"]
    left = [(each.op, each.reason) for each in decisions if not each.taken]
    assert left == [("softmax", "an inner axis, over sizes that are not known")]


def test_before_and_after() -> None:
    mod = module(
        lambda x, y: op.add(op.nn.softmax(x, 1), y),
        ((BATCH, LENGTH, 8), "float32"),
        ((BATCH, LENGTH, 8), "float32"),
    )
    after, _ = run(mod)
    assert_structural_equal(after["main"], mod["main"])


def test_strict_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"strict: no template takes softmax"):
        run(products(), strict=True)


def test_known_sizes_stay() -> None:
    mod = module(lambda x, y: op.matmul(x, y), ((2, 5, 8), "float32"), ((2, 8, 5), "float32"))
    formed = partition(ISA, [])(mod)
    assert_structural_equal(dissolve_parts(ISA, [])(formed), formed)
