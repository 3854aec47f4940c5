"""Functions that are no nests still run; a failing rule does not fail the compilation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.relax import op

from relay_passes.ir.decisions import REORDER, Decision, DecisionLog
from relay_passes.legalize import moves
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.tir_schedules.run_generic import (
    BEST,
    Shapes,
    is_parallel,
    lowered,
    prim_funcs,
    random_array,
    run_guarded,
    run_module,
    scheduled,
)
from tests.tir_schedules.run_region import machine_for
from tir_schedules.generic import schedule as generic
from tir_schedules.generic.fusion import merge_nests
from tir_schedules.generic.nest import NotHandledError, read_program
from tir_schedules.generic.schedule import loops_as_written


def unknown_length() -> tvm.IRModule:
    """exp(x) + x for x of dynamic length."""
    builder = relax.BlockBuilder()
    length = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([length, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(op.add(op.exp(x), x)))
        builder.emit_func_output(result)
    passes = [relax.transform.LegalizeOps(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
    return tvm.ir.transform.Sequential(passes)(builder.get())


@pytest.mark.parametrize("threads, name", [(1, "generic_serial"), (2, "generic_blocks")])
def test_unknown_lengths(
    threads: int, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rules for dynamic items and for rows, plain loops or blocks run."""
    others = ("dynamic_items", "static_rows")
    rules = tuple(rule for rule in generic.RULES if rule.__name__ not in others)
    monkeypatch.setattr(generic, "RULES", rules)
    with caplog.at_level(logging.INFO, logger="tvm_hybrid"):
        mod, names, funcs = scheduled(unknown_length(), threads)
    assert set(names) == {name}
    assert "not known" in caplog.text
    assert any(map(is_parallel, funcs)) == (threads == 2)
    x = random_array((11, 8), "float32")
    (result,) = run_module(mod, [x])
    # A few roundings each.
    np.testing.assert_allclose(result, np.exp(x.astype(float)) + x, rtol=1e-6, atol=1e-6)


def broken(func: tirx.PrimFunc, machine: object) -> tuple[tirx.PrimFunc, str]:
    raise IndexError("broken on purpose")


def refused_by_tvm(func: tirx.PrimFunc, machine: object) -> tuple[tirx.PrimFunc, str]:
    """Decomposes a loop that is no reduction, which TVM refuses."""
    schedule = s_tir.Schedule(func)
    (block,) = schedule.get_child_blocks(schedule.get_sblock(func.body.block.name_hint))
    schedule.decompose_reduction(block, schedule.get_loops(block)[0])
    return func, "never"


def refused_in_a_callback(func: tirx.PrimFunc, machine: object) -> tuple[tirx.PrimFunc, str]:
    def visit(_load: ir.expr.TensorLoad) -> None:
        raise NotHandledError("not here")

    tvm_ffi.structural_walk(func.body, (ir.expr.TensorLoad, visit))
    return func, "never"


def with_first(rule: generic.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic, "RULES", (rule, *generic.RULES))


def test_a_mistake_in_a_rule_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without decisions, and in all tests by `tests/conftest.py`, a rule's mistake is raised."""
    with_first(broken, monkeypatch)
    mod = lowered(op.add, [((3, 20), "float32")] * 2)
    with pytest.raises(IndexError, match="broken on purpose"):
        schedule_leftovers(machine_for(BEST), [])(mod)
    monkeypatch.delenv(generic.ERRORS_VARIABLE)
    with pytest.raises(IndexError, match="broken on purpose"):
        scheduled(mod)


def test_a_mistake_in_a_rule_is_a_decision(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next rule schedules the loops, and results are right."""
    monkeypatch.delenv(generic.ERRORS_VARIABLE)
    with_first(broken, monkeypatch)
    decisions: DecisionLog = []
    with caplog.at_level(logging.WARNING, logger="tvm_hybrid"):
        mod = schedule_leftovers(machine_for(BEST), decisions)(
            lowered(op.add, [((3, 20), "float32")] * 2)
        )
    (decision,) = decisions
    said = "broken failed: IndexError: broken on purpose"
    assert decision.reason == f"no template; generic schedule; {said}"
    assert decision.kernel == "generic_injective" and said in caplog.text
    x = random_array((3, 20), "float32")
    np.testing.assert_array_equal(run_module(mod, [x, x])[0], x + x)


def test_a_mistake_about_a_noted_reorder_is_in_its_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(generic.ERRORS_VARIABLE)
    with_first(broken, monkeypatch)
    noted = Decision(node="y", op=REORDER, taken=False, reason="why")
    decisions = [noted]
    body = lowered(lambda x: op.permute_dims(x, [1, 0]), [((3, 20), "float32")])
    monkeypatch.setattr(moves, "reorders_in", lambda _func: 1)
    schedule_leftovers(machine_for(BEST), decisions)(body)
    (decision,) = decisions
    assert decision.reason == "why; broken failed: IndexError: broken on purpose"


@pytest.mark.parametrize("rule", [refused_by_tvm, refused_in_a_callback])
def test_a_refusal_is_no_mistake(rule: generic.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's primitives may refuse a program, and refusals may pass through TVM's callbacks."""
    with_first(rule, monkeypatch)
    x = random_array((60,), "float32")
    result, name, _ = run_guarded(op.add, [x, x])
    assert name == "generic_injective"
    np.testing.assert_array_equal(result, x + x)


def test_erf_lowers_even_where_loops_stay() -> None:
    mod = lowered(op.erf, [((4, 5), "float32")])
    (func,) = prim_funcs(mod)
    plain, name = loops_as_written(func, machine_for("scalar"))
    assert name == "generic_serial"
    library = tvm.compile(plain.with_attr("global_symbol", "kernel"), target="llvm")
    x = tvm.runtime.tensor(np.zeros((4, 5), np.float32))
    library["kernel"](x, x)
    np.testing.assert_array_equal(x.numpy(), 0)


def nests_of(build: Callable[..., Any], shapes: Shapes) -> list[list[str]]:
    """Names of the merged nests of every function."""
    return [
        [nest.name for nest in merge_nests(read_program(func)).nests]
        for func in prim_funcs(lowered(build, shapes))
    ]


def test_chains_become_one_nest() -> None:
    shapes = [((8, 32), "float32")]
    assert list(map(len, nests_of(lambda x: op.nn.gelu(x), shapes))) == [1]
    assert list(map(len, nests_of(lambda x: op.mean(x, [1]), shapes))) == [1]
    assert list(map(len, nests_of(lambda x: op.sum(op.exp(x), [1]), shapes))) == [1]


def test_what_is_expensive_is_computed_once() -> None:
    # exp is read by the sum and by the division; the padded image nine times.
    (names,) = nests_of(op.nn.softmax, [((8, 32), "float32")])
    assert "T_softmax_exp" in names
    shapes = [((1, 4, 9, 9), "float32"), ((4, 4, 3, 3), "float32")]
    (names,) = nests_of(lambda x, w: op.nn.conv2d(x, w, padding=1), shapes)
    assert names == ["pad_temp", "conv2d_nchw"]


def test_scans_are_not_nests() -> None:
    (func,) = prim_funcs(lowered(lambda x: op.cumsum(x, 1), [((4, 8), "float32")]))
    with pytest.raises(NotHandledError):
        read_program(func)
