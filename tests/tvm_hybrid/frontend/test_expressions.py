"""What converters read off types and constants."""

from __future__ import annotations

from tvm import relax

from tvm_hybrid.frontend.expressions import static_shape_of


def test_a_shape_that_a_variable_holds_is_not_static() -> None:
    shape = relax.Var("shape", relax.ShapeType(ndim=2))
    assert static_shape_of(relax.TensorType(shape, "float32")) is None


def test_a_shape_of_numbers_is_static() -> None:
    assert static_shape_of(relax.TensorType((2, 3), "float32")) == (2, 3)
