"""`tensorize`: the kernel that a program gets, its result, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, te, tirx

import tvm_hybrid
from microkernels.registry import microkernel_named
from relay_passes.ir.decisions import TENSORIZE, DecisionLog
from relay_passes.ir.functions import KERNEL
from tests.guard import guarded
from tests.microkernels.isa_targets import target_of
from tests.relay_passes.graphs import module
from tests.relay_passes.lift.test_lift_programs import legalized
from tests.stand_ins import running
from tests.tir_schedules.tensorize.programs import Tensor, function, summed
from tests.tvm_hybrid.executable.test_input_alignment import at_offset
from tvm_hybrid.errors import CompileError
from tvm_hybrid.runtime.feeds import tensor_of

F = "float32"


def cast(dtype: str, value: Any) -> Any:
    return tirx.Cast(dtype, value)


def in_place(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return summed((6, 3, 5), (33,), lambda i, n, j, k: a[n, k, i] * b[j, n, k])


def copied(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return summed((6, 5, 4), (3, 7), lambda i, j, m, k, n: a[k, i, n] * b[n, j, k, m])


def with_blocks_around(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    scaled = te.compute((6, 33), lambda i, k: a[i, k] * 0.5 + 1.0, "scaled")
    product = summed((6, 5), (33,), lambda i, j, k: scaled[i, k] * b[k, j])
    return te.compute((5, 6), lambda j, i: tirx.max(product[i, j], tirx.const(0, F)), "relu")


def convolution(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    return summed(
        (2, 5, 5, 16),
        (3, 3, 4),
        lambda n, y, z, o, u, v, c: x[n, y * 2 + u, z * 2 + v, c] * w[u, v, c, o],
    )


def windows(x: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::2, ::2]


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], Callable[..., Any]]] = {
    "in place": (
        in_place,
        (((3, 33, 6), F), ((5, 3, 33), F)),
        lambda a, b: np.einsum("nki,jnk->inj", a, b),
    ),
    "copied": (
        copied,
        (((3, 6, 7), F), ((7, 5, 3, 4), F)),
        lambda a, b: np.einsum("kin,njkm->ijm", a, b),
    ),
    "with blocks around": (
        with_blocks_around,
        (((6, 33), F), ((33, 5), F)),
        lambda a, b: np.maximum((a * 0.5 + 1) @ b, 0).T,
    ),
    "convolution": (
        convolution,
        (((2, 11, 11, 4), F), ((3, 3, 4, 16), F)),
        lambda x, w: np.einsum("nyzcuv,uvco->nyzo", windows(x), w),
    ),
    "bytes": (
        lambda a, b: summed(
            (6, 5), (33,), lambda i, j, k: cast("int32", a[k, i]) * cast("int32", b[j, k])
        ),
        (((33, 6), "uint8"), ((5, 33), "int8")),
        lambda a, b: a.T @ b.T,
    ),
    "bfloat16": (
        lambda a, b: summed((6, 5), (32,), lambda i, j, k: cast(F, a[k, i]) * cast(F, b[j, k])),
        (((32, 6), "bfloat16"), ((5, 32), "bfloat16")),
        lambda a, b: a.T @ b.T,
    ),
}


def values(tensor: Tensor, seed: int) -> np.ndarray:
    """Integers whose sums of products are exact in every type."""
    shape, dtype = tensor
    rng = np.random.default_rng(seed)
    low, high = (0, 255) if dtype == "uint8" else (-128, 127) if dtype == "int8" else (-8, 8)
    numbers = rng.integers(low, high, shape, endpoint=True)
    return numbers.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def called(
    made: tirx.PrimFunc, arrays: list[np.ndarray], target: tvm.target.Target | None = None
) -> np.ndarray:
    """The value that a function writes into its last parameter."""
    out = made.params[-1]
    shape = [int(extent) for extent in out.shape]
    result = tvm.runtime.tensor(np.zeros(shape, str(out.dtype)))
    named = made.with_attr("global_symbol", "program")
    library = tvm.compile(named, target=target or tvm_hybrid.resolve_target(None))
    library["program"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_programs(name: str, threads: int) -> None:
    body, inputs, meaning = CASES[name]
    program = function(body, *inputs)
    decisions: DecisionLog = []
    made = tvm_hybrid.tensorize(program, num_threads=threads, decisions=decisions)
    assert isinstance(made, tirx.PrimFunc)
    for old, new in zip(program.params, made.params, strict=True):
        assert [*map(int, old.shape)] == [*map(int, new.shape)] and old.dtype == new.dtype
    assert microkernel_named(str(made.attrs[KERNEL])).b_dtype in ("float32", "int8", "bfloat16")
    assert any(each.op == TENSORIZE and each.taken for each in decisions)
    arrays = [values(tensor, seed) for seed, tensor in enumerate(inputs)]
    wide = [array.astype(np.int64 if array.dtype.kind in "iu" else np.float64) for array in arrays]
    np.testing.assert_array_equal(called(made, arrays), meaning(*wide))


@pytest.mark.parametrize("name", ["in place", "bytes", "bfloat16"])
def test_the_target_need_not_be_named_again(name: str) -> None:
    """LLVM ends the process at an instruction that its default CPU lacks."""
    body, inputs, meaning = CASES[name]
    target = tvm_hybrid.resolve_target(None)
    module = IRModule({"program": function(body, *inputs).with_attr("global_symbol", "program")})
    made = tvm_hybrid.tensorize(module, num_threads=1)
    assert str(made["program"].attrs["target"]) == str(target)
    arrays = [values(tensor, seed) for seed, tensor in enumerate(inputs)]
    wide = [array.astype(np.int64) for array in arrays]
    out = made["program"].params[-1]
    result = tvm.runtime.empty([int(extent) for extent in out.shape], str(out.dtype))
    tvm.compile(made)["program"](*map(tvm.runtime.tensor, arrays), result)
    np.testing.assert_array_equal(result.numpy(), meaning(*wide))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_arguments_may_lie_anywhere(name: str, threads: int) -> None:
    """TVM promises LLVM addresses that are multiples of 64; NumPy's are multiples of 16."""
    body, inputs, meaning = CASES[name]
    made = tvm_hybrid.tensorize(function(body, *inputs), num_threads=threads)
    library = tvm.compile(made.with_attr("global_symbol", "program"))
    arrays = [values(tensor, seed) for seed, tensor in enumerate(inputs)]
    wide = [array.astype(np.int64) for array in arrays]
    out = made.params[-1]
    result = np.zeros([int(extent) for extent in out.shape], str(out.dtype))
    given = [at_offset(each, each.itemsize) for each in (*arrays, result)]
    library["program"](*map(tensor_of, given))
    np.testing.assert_array_equal(given[-1], meaning(*wide))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(6, 65, 33), (13, 48, 3), (7, 16, 66), (64, 128, 64)])
def test_a_bfloat16_weight_that_is_an_argument(
    m: int, n: int, k: int, transposed: bool, threads: int
) -> None:
    """Kernels read pairs of rows, but nothing outside of their arrays."""
    inputs = ((m, k), "bfloat16"), ((n, k) if transposed else (k, n), "bfloat16")

    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        def term(i: Any, j: Any, r: Any) -> Any:
            return cast(F, a[i, r]) * cast(F, b[j, r] if transposed else b[r, j])

        return summed((m, n), (k,), term)

    made = tvm_hybrid.tensorize(function(body, *inputs), num_threads=threads)
    library = tvm.compile(made.with_attr("global_symbol", "program"))
    arrays = [values(tensor, seed) for seed, tensor in enumerate(inputs)]
    left, right = (array.astype(np.float32) for array in arrays)
    for at_end in (False, True):
        given = [guarded(each, at_end) for each in (*arrays, np.zeros((m, n), F))]
        library["program"](*map(tensor_of, given))
        out = given[-1]
        np.testing.assert_array_equal(out, left @ (right.T if transposed else right))


@pytest.mark.isa("amx")
def test_tiles_where_the_target_has_them() -> None:
    shapes = ((64, 3, 64), "uint8"), ((3, 64, 64), "int8")

    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed(
            (3, 64, 64),
            (64,),
            lambda n, i, j, k: cast("int32", a[i, n, k]) * cast("int32", b[n, k, j]),
        )

    with target_of("amx") as target:
        made = tvm_hybrid.tensorize(function(body, *shapes), target=target, num_threads=1)
    assert str(made.attrs[KERNEL]).startswith("amx_")
    compiled = running.compiled(made.with_attr("global_symbol", "main"), "amx")["main"]
    arrays = [values(tensor, seed) for seed, tensor in enumerate(shapes)]
    result = tvm.runtime.empty((3, 64, 64), "int32")
    compiled(*map(tvm.runtime.tensor, arrays), result)
    expected = np.einsum("ink,nkj->nij", *(array.astype(np.int32) for array in arrays))
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("name", ["in place", "bytes"])
def test_for_avx2(name: str) -> None:
    body, inputs, meaning = CASES[name]
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    made = tvm_hybrid.tensorize(function(body, *inputs), target=target, num_threads=1)
    assert str(made.attrs[KERNEL]).startswith("avx2_")
    arrays = [values(tensor, seed) for seed, tensor in enumerate(inputs)]
    wide = [array.astype(np.int64) for array in arrays]
    np.testing.assert_array_equal(called(made, arrays, target), meaning(*wide))


def test_a_module_keeps_its_other_functions() -> None:
    op = relax.op
    mod = legalized(
        module(lambda x, w: op.sum(op.nn.relu(op.matmul(x, w)), [0]), ((6, 33), F), ((33, 5), F))
    )
    decisions: DecisionLog = []
    made = tvm_hybrid.tensorize(mod, num_threads=1, decisions=decisions)
    assert isinstance(made, IRModule)
    changed = [str(g.name_hint) for g, f in made.functions_items() if not f.same_as(mod[g])]
    assert changed == ["matmul"] and KERNEL in made["matmul"].attrs
    reasons = {each.function: each.reason for each in decisions if not each.taken}
    assert "no sum of products of two tensors" in reasons["relu"]
    arrays = [values(tensor, seed) for seed, tensor in enumerate((((6, 33), F), ((33, 5), F)))]
    library = tvm.compile(made, tvm_hybrid.resolve_target(None))
    found = relax.VirtualMachine(library, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays))
    np.testing.assert_array_equal(
        found.numpy(), np.maximum(arrays[0] @ arrays[1], 0).sum(0, dtype=F)
    )


@pytest.mark.parametrize(
    ("body", "inputs", "reason"),
    [
        (
            lambda a: te.compute((4,), lambda i: a[i] + 1.0),
            (((4,), F),),
            "no sum of products of two tensors",
        ),
        (
            lambda a, b: summed((4,), (8,), lambda i, k: a[i, k] * b[k]),
            (((4, 8), F), ((8,), F)),
            "a matrix by a vector",
        ),
        (
            lambda a, b: summed((4, 5), (8,), lambda i, j, k: a[i, k] * b[k, j]),
            (((4, 8), "float64"), ((8, 5), "float64")),
            "float64 by float64, summed in float64: no kernel multiplies that",
        ),
    ],
)
def test_refusals(body: Callable[..., Any], inputs: tuple[Tensor, ...], reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        tvm_hybrid.tensorize(function(body, *inputs))


def test_what_is_written_comes_last() -> None:
    program = function(in_place, ((3, 33, 6), F), ((5, 3, 33), F))
    turned = tirx.PrimFunc([*program.params][::-1], program.body, program.ret_type, program.attrs)
    with pytest.raises(CompileError, match="its results are not its last parameters"):
        tvm_hybrid.tensorize(turned)
