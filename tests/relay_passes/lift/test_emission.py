"""Emission binds equal values once, can undo bindings, and widens bytes last."""

from __future__ import annotations

from tvm import relax

from relay_passes.ir.graph import op_name
from relay_passes.lift.emission import Emission

op = relax.op


def value(shape: tuple[int, ...] = (4, 8), dtype: str = "float32") -> relax.Var:
    return relax.Var("x", relax.TensorType(shape, dtype))


def test_equal_values_are_one() -> None:
    block, x, y = Emission(), value(), value()
    first = block.emit(op.exp(x))
    assert block.emit(op.exp(x)).same_as(first)
    assert not block.emit(op.exp(y)).same_as(first)
    assert len(block.bindings) == 2
    assert op_name(block.definition(first)) == "relax.exp" and block.definition(x) is None


def test_what_was_taken_back_is_emitted_anew() -> None:
    block, x = Emission(), value()
    mark = block.mark
    first = block.emit(op.exp(x))
    block.undo(mark)
    assert block.definition(first) is None
    block.emit(op.log(x))
    again = block.emit(op.exp(x))
    assert not again.same_as(first) and len(block.bindings) == 2


def test_bytes_are_widened_last() -> None:
    block, x = Emission(), value(dtype="uint8")
    wide = block.emit(op.subtract(block.emit(op.astype(x, "int32")), relax.const(3)))
    moved = block.definition(block.emit(op.permute_dims(wide, [1, 0])))
    assert op_name(moved) == "relax.subtract"
    cast = block.definition(moved.args[0])
    assert op_name(cast) == "relax.astype" and op_name(block.definition(cast.args[0])) == (
        "relax.permute_dims"
    )


def test_zeros_around_a_shifted_value_stay_zeros() -> None:
    block, x = Emission(), value(dtype="uint8")
    cast = block.emit(op.astype(x, "int32"))
    shifted = block.emit(op.subtract(cast, relax.const(3)))
    widths = [1, 1, 0, 0]
    assert op_name(block.definition(block.emit(op.nn.pad(shifted, widths)))) == "relax.nn.pad"
    assert op_name(block.definition(block.emit(op.nn.pad(cast, widths)))) == "relax.astype"
