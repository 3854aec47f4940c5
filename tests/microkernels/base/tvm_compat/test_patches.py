"""Behaviour of TVM's classes after the compiler has patched them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import tvm_ffi
from tvm import ir, relax, te, tirx

from microkernels.base.tvm_compat import patches

op = relax.op
SQUARE = ((4, 4), "float32")


def test_arrays_are_read_without_the_checks_of_tvm() -> None:
    patches.quick_arrays()
    getitem = tvm_ffi.Array.__getitem__
    patches.quick_arrays()  # a second call does nothing
    assert tvm_ffi.Array.__getitem__ is getitem
    array = tvm_ffi.convert([3, "a", None])
    assert isinstance(array, tvm_ffi.Array)
    assert list(array) == [array[place] for place in range(3)] == [3, "a", None]
    assert array[-1] is None and array[1:] == ["a", None]
    assert list(zip(array, array, strict=True)) == [(3, 3), ("a", "a"), (None, None)]
    for place in (3, -4):
        with pytest.raises(IndexError, match="out of range"):
            array[place]
    with pytest.raises(TypeError, match="indices must be integers"):
        array["a"]
    assert list(tvm_ffi.convert([])) == []


def test_classes_comparisons_and_calls_are_as_without_shortcuts() -> None:
    kind = type(tvm_ffi.Object)
    patches.quick_objects()
    check, init = kind.__instancecheck__, ir.Call.__init__
    patches.quick_objects()  # a second call does nothing
    assert kind.__instancecheck__ is check and ir.Call.__init__ is init
    x, y = (relax.Var(name, relax.TensorType((2,), "float32")) for name in "xy")
    assert isinstance(x, relax.Expr) and not isinstance(x, (relax.Call, tvm_ffi.Array))
    call = op.add(x, y)
    assert call.args[0] == x and call.args[0] != y and {x: 1}[call.args[0]] == 1
    n = tirx.Var("n", "int64")
    assert isinstance((n == 1).asobject(), tirx.EQ) and n == n  # an expression, true of itself
    for made in (relax.Call(call.op, [x, y]), relax.Call("relax.add", (x, y), {}, ret_ty=x.ty)):
        assert made.op.same_as(call.op) and made.args[1] == y and not list(made.ty_args)
    assert made.ty.same_as(x.ty) and relax.Call(call.op, [x, y]).ty.is_missing()
    assert str(relax.Call("relax.add", [n, n], ret_ty="int64").ty) == "int64"


def test_threads_build_functions_at_the_same_time() -> None:
    patches.separate_builders()  # a second call does nothing
    together = Barrier(2, timeout=60)

    def build(size: int) -> int:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((size,), "float32"))
        with builder.function("main", [x]):
            together.wait()
            assert relax.BlockBuilder.current() is builder
            with builder.dataflow():
                y = builder.emit_output(builder.emit(op.add(x, x)))
            together.wait()
            builder.emit_func_output(y)
        assert relax.BlockBuilder.current() is None
        return int(builder.get()["main"].ret_ty.shape[0])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(build, [3, 4])) == [3, 4]


def test_threads_call_tagged_functions_at_the_same_time() -> None:
    patches.separate_tags()  # a second call does nothing
    together = Barrier(2, timeout=60)

    @te.tag_scope("both")
    def tagged(x: te.Tensor) -> te.Tensor:
        together.wait()
        y = te.compute(x.shape, lambda i: x[i] + 1.0)
        together.wait()
        return y

    def tags(size: int) -> list[str]:
        x = te.placeholder((size,), "float32")
        with te.tag_scope("own"):
            own = te.compute(x.shape, lambda i: x[i] * 2.0)
        found = [own, tagged(own), te.compute(x.shape, lambda i: own[i] * 2.0)]
        return [str(y.op.tag) for y in found]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(tags, [3, 4])) == [["own", "both", ""]] * 2
    with te.tag_scope("outer"):
        x = te.compute((5,), lambda i: i)
        with pytest.raises(ValueError, match="nested"), te.tag_scope("inner"):
            tagged(x)


def test_a_kernel_takes_sizes_in_the_order_of_the_shapes_that_have_them() -> None:
    patches.order_symbols()  # a second call does nothing
    names = [f"n{place}" for place in range(16)]
    symbols = [tirx.Var(name, "int64") for name in names]
    own = tirx.Var("own", "int64")
    builder = relax.BlockBuilder()
    x, y = (
        relax.Var(name, relax.TensorType([symbol + 1 for symbol in found] + [own], "float32"))
        for name, found in (("x", symbols[:8]), ("y", symbols[4:]))
    )
    with builder.function("main", [x, y]):
        called = builder.call_te(
            lambda x, y: te.compute(y.shape, lambda *at: y(*at) + x(*(0 for _ in x.shape))), x, y
        )
        builder.emit_func_output(builder.emit(called))
    assert [arg.name for arg in called.args[1]][2:] == names
