"""Rebuilding statements from their children changes nothing; children come in program order."""

from __future__ import annotations

import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder

from tir_schedules.core.emission import children, walk, with_body, with_children


def example() -> tirx.PrimFunc:
    """Every kind of statement that contains others."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        a = I.arg("a", I.buffer((8,), "int32"))
        with I.sblock("root"):
            own = I.sblock_alloc_buffer((8,), "int32")
            with I.parallel(2) as task, I.sblock("task"):
                row = I.axis.spatial(2, task)
                I.reads(a[row])
                I.writes(own[row])
                I.where(task < 1)
                I.sblock_attr({"note": "kept"})
                view = I.match_buffer(a[0:4], (4,), "int32", offset_factor=1)
                with I.init():
                    I.buffer_store(own, tirx.const(0, "int32"), [row])
                with I.attr(0, "pragma_x", 1), I.If(a[row] > 1):
                    with I.Then():
                        I.buffer_store(own, view[row], [row])
                        I.evaluate(1)
                    with I.Else():
                        I.evaluate(2)
            with I.unroll(4, annotations={"note": 1}) as i, I.If(i > 2), I.Then():
                I.evaluate(3)
            with I.While(a[0] > 0):
                I.buffer_store(a, own[1], [0])
    return builder.get()


def rebuilt(statement: tirx.Stmt) -> tirx.Stmt:
    return with_children(statement, [rebuilt(child) for child in children(statement)])


def test_nothing_gets_lost() -> None:
    function = example()
    kinds = {type(statement) for statement in walk(function.body)}
    assert kinds >= {
        s_tir.SBlock,
        s_tir.SBlockRealize,
        tirx.AttrStmt,
        tirx.For,
        tirx.IfThenElse,
        tirx.SeqStmt,
        tirx.While,
    }
    tvm.ir.assert_structural_equal(function.with_body(rebuilt(function.body)), function)


def test_the_walk_is_in_program_order() -> None:
    numbers = [
        int(statement.value)
        for statement in walk(example().body)
        if isinstance(statement, tirx.Evaluate)
    ]
    assert numbers == [1, 2, 3]


def test_another_body_and_other_annotations() -> None:
    (task,) = [
        block
        for block in walk(example().body)
        if isinstance(block, s_tir.SBlock) and block.name_hint == "task"
    ]
    changed = with_body(task, tirx.Evaluate(7), {"other": 1})
    assert int(changed.body.value) == 7
    assert dict(changed.annotations) == {"other": 1}
    restored = with_body(changed, task.body, dict(task.annotations))
    tvm.ir.assert_structural_equal(restored, task)


def test_more_children_than_there_are_places() -> None:
    leaf = tirx.Evaluate(1)
    with pytest.raises(ValueError, match="2 statements for the 1"):
        with_children(tirx.While(tirx.const(1, "bool"), leaf), [leaf, leaf])
