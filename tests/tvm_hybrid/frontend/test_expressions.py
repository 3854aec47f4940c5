"""What converters read from types and constants, and the kernels that they write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tvm import relax, te, tirx

from tvm_hybrid.frontend.expressions import emit_te, static_shape_of, writing_to

SIZES = [f"n{place}" for place in range(16)]


def test_a_shape_that_a_variable_holds_is_not_static() -> None:
    shape = relax.Var("shape", relax.ShapeType(ndim=2))
    assert static_shape_of(relax.TensorType(shape, "float32")) is None


def test_a_shape_of_numbers_is_static() -> None:
    assert static_shape_of(relax.TensorType((2, 3), "float32")) == (2, 3)


def print_sizes_of_a_kernel() -> None:
    """Prints the order in which a kernel takes sizes that occur in none of its shapes."""
    x = relax.Var("x", relax.TensorType([tirx.Var(size, "int64") + 1 for size in SIZES], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]), writing_to(builder):
        made = emit_te(lambda x: te.compute((3,), lambda i: x(*[i] * len(SIZES))), x)
        call = builder.lookup_binding(made)
        builder.emit_func_output(made)
    print(*[size.name for size in call.args[1]][1:])


def test_a_kernel_takes_sizes_in_the_same_order_in_every_process() -> None:
    """The order must not depend on the process; here it may also come from an imported module."""
    asked = f"from {__name__} import print_sizes_of_a_kernel as show; show()"
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", asked], cwd=root, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == SIZES
