"""TIR functions become operators or stay; what a compiled model then runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, te, tirx
from tvm.ir import assert_structural_equal

import tvm_hybrid
from microkernels.registry import microkernel_named
from relay_passes.ir.decisions import TENSORIZE, DecisionLog
from relay_passes.lift.lift_programs import lift_programs
from tests.relay_passes.graphs import Body, constant, module, run
from tests.tir_schedules.tensorize.programs import function, summed

pytestmark = pytest.mark.turns

op = relax.op
F = "float32"
Tensor = tuple[tuple[int, ...], str]


PASSES = (
    relax.transform.LegalizeOps,
    relax.transform.AnnotateTIROpPattern,
    relax.transform.FuseOps,
    relax.transform.FuseTIR,
)
STAGES = {"legalised": 1, "grouped": 3, "fused": 4}


def legalized(mod: IRModule, stage: str = "legalised") -> IRModule:
    """A module as some of TVM's passes leave it: LegalizeOps, FuseOps, FuseTIR."""
    return ir.transform.Sequential([make() for make in PASSES[: STAGES[stage]]])(mod)


def lifted(mod: IRModule) -> tuple[IRModule, DecisionLog]:
    decisions: DecisionLog = []
    found = lift_programs(decisions=decisions)(mod)
    return relax.transform.CanonicalizeBindings()(found), decisions


def calling(func: tirx.PrimFunc, out: Tensor, *inputs: Tensor) -> IRModule:
    """main(*inputs), which calls one function."""
    builder = relax.BlockBuilder()
    gvar = builder.add_func(func.without_attr("global_symbol"), "program")
    parameters = [relax.Var(f"x{i}", relax.TensorType(*each)) for i, each in enumerate(inputs)]
    with builder.function("main", parameters):
        with builder.dataflow():
            call = relax.call_tir(gvar, parameters, relax.TensorType(*out))
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    return builder.get()


def names(mod: IRModule) -> list[str]:
    """The operators of main, in order."""
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [str(b.value.op.name).removeprefix("relax.") for b in bindings]


def randoms(*inputs: Tensor) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(shape).astype(dtype)
        if dtype == F
        else rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        for shape, dtype in inputs
    ]


def layer(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return op.nn.relu(op.add(op.matmul(x, w), b))


MODELS: dict[str, tuple[Body, tuple[Tensor, ...], list[str]]] = {
    "layer": (layer, (((3, 4, 8), F), ((8, 5), F), ((5,), F)), ["matmul", "add", "nn.relu"]),
    "gelu": (
        lambda x, w: op.nn.gelu(op.matmul(x, w)),
        (((6, 8), F), ((8, 5), F)),
        ["matmul", "multiply", "erf", "multiply", "add", "multiply"],
    ),
    "heads": (
        lambda x, w: op.matmul(op.permute_dims(op.reshape(x, (6, 2, 4)), [1, 0, 2]), w),
        (((6, 8), F), ((2, 4, 5), F)),
        ["reshape", "permute_dims", "matmul"],
    ),
    "softmax": (
        lambda x, w: op.nn.softmax(op.matmul(x, w)),
        (((6, 8), F), ((8, 5), F)),
        ["matmul", "max", "reshape", "reshape", "subtract", "exp", "sum"],
    ),
    "batch of one": (
        lambda x, w: op.nn.softmax(op.nn.rms_norm(op.matmul(x, w), constant(5), [-1])),
        (((1, 6, 8), F), ((8, 5), F)),
        ["matmul", "multiply", "mean"],
    ),
    "slices": (
        lambda x, w: op.matmul(op.strided_slice(x, [0, 1], [1, 0], [6, 8], [2, 1]), w),
        (((6, 8), F), ((8, 5), F)),
        ["strided_slice", "matmul"],
    ),
    "cast": (
        lambda x, w: op.matmul(op.astype(x, F), w),
        (((6, 8), "int8"), ((8, 5), F)),
        ["astype", "matmul"],
    ),
    "norm": (
        lambda x, w: op.nn.rms_norm(op.matmul(x, w), constant(5), [-1]),
        (((6, 8), F), ((8, 5), F)),
        ["matmul"],
    ),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MODELS)
def test_legalised_operators_come_back(name: str, stage: str) -> None:
    body, inputs, first = MODELS[name]
    plain = module(body, *inputs)
    found, decisions = lifted(legalized(plain, stage))
    assert "call_tir" not in names(found)
    assert names(found)[: len(first)] == first
    assert [decision.taken for decision in decisions] == [True]
    arrays = randoms(*inputs)
    np.testing.assert_allclose(run(found, arrays)[0], run(plain, arrays)[0], 1e-5, 1e-5)


def test_a_layer() -> None:
    inputs = ((4, 8), F), ((8, 5), F), ((5,), F)
    found, _ = lifted(legalized(module(layer, *inputs), "fused"))

    def after(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.add(op.matmul(x, w, out_dtype=F), b))

    assert_structural_equal(found, module(after, *inputs))


@pytest.mark.parametrize(
    ("strides", "padding", "dilation", "groups", "weight"),
    [
        ((1, 1), (1, 1), (1, 1), 1, (6, 4, 3, 3)),
        ((2, 1), (0, 1), (1, 2), 1, (6, 4, 2, 3)),
        ((2, 2), (1, 1), (2, 1), 2, (6, 2, 3, 3)),
        ((1, 1), (1, 1), (1, 1), 4, (4, 1, 3, 3)),
        ((1, 1), (0, 0), (1, 1), 1, (6, 4, 1, 1)),
        ((1, 1), (0, 0), (1, 1), 1, (6, 4, 9, 9)),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_convolutions(
    batch: int,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    weight: tuple[int, ...],
) -> None:
    x = (batch, 4, 9, 9), F
    w = constant(*weight)

    def body(data: relax.Expr) -> relax.Expr:
        return op.nn.conv2d(data, w, strides, padding, dilation, groups)

    plain = module(body, x)
    found, _ = lifted(legalized(plain))
    assert names(found) == ["nn.pad", "nn.conv2d"][0 if any(padding) else 1 :]
    attrs = found["main"].body.blocks[0].bindings[-1].value.attrs
    assert int(attrs.groups) == groups
    if 9 not in weight:  # with one window along an axis, its stride may be any number
        assert tuple(map(int, attrs.strides)) == strides
    taps = zip(dilation, attrs.dilation, weight[2:], strict=True)
    assert all(wanted == int(found) for wanted, found, count in taps if count > 1)
    arrays = randoms(x)
    np.testing.assert_allclose(run(found, arrays)[0], run(plain, arrays)[0], 1e-4, 1e-4)


def test_a_convolution_by_a_computed_weight_is_gathered() -> None:
    inputs = ((1, 4, 9, 9), F), ((16, 4, 3, 3), F)
    plain = module(lambda x, w: op.nn.conv2d(x, w, padding=(1, 1)), *inputs)
    found, (decision,) = lifted(legalized(plain))
    assert "matmul" in names(found) and "gathered" in decision.reason
    arrays = randoms(*inputs)
    np.testing.assert_allclose(run(found, arrays)[0], run(plain, arrays)[0], 1e-4, 1e-4)


def conv_like(
    x: te.Tensor, w: te.Tensor, taps: int = 3, places: int = 7, same: bool = False, twice: int = 0
) -> te.Tensor:
    """A sum of products over windows along one axis, which options turn into near convolutions."""
    steps = (4, taps, 2) if twice else (4, taps)

    def term(n: Any, f: Any, i: Any, c: Any, u: Any, *_: Any) -> Any:
        return x[n, c, i + u] * w[n if same else f, c, u]

    return summed((2, 2 if same else 16, places), steps, term)


@pytest.mark.parametrize(
    "options",
    [{"taps": 2}, {"places": 6}, {"same": True}, {"twice": 1}],
    ids=["some taps", "some places", "a diagonal", "a sum of the same"],
)
def test_what_is_nearly_a_convolution_is_none(options: dict[str, Any]) -> None:
    weight = constant(2 if "same" in options else 16, 4, 3)
    x = (2, 4, 9), F
    func = function(lambda a, b: conv_like(a, b, **options), x, (weight.value.shape, F))
    out = tuple(int(extent) for extent in func.params[-1].shape)
    builder = relax.BlockBuilder()
    gvar = builder.add_func(func.without_attr("global_symbol"), "program")
    with builder.function("main", [given := relax.Var("x", relax.TensorType(*x))]):
        with builder.dataflow():
            call = relax.call_tir(gvar, [given, weight], relax.TensorType(out, F))
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    mod = builder.get()
    found, _ = lifted(mod)
    assert "nn.conv1d" not in names(found)
    arrays = randoms(x)
    np.testing.assert_allclose(run(found, arrays)[0], run(mod, arrays)[0], 1e-4, 1e-4)


TYPES = [(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")]


@pytest.mark.parametrize(("left", "right"), TYPES)
def test_integers_in_any_order_are_exact(left: str, right: str) -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed(
            (5, 2, 7),
            (33,),
            lambda i, n, j, k: tirx.Cast("int32", a[k, n, i]) * tirx.Cast("int32", b[n, j, k]),
        )

    inputs = ((33, 2, 5), left), ((2, 7, 33), right)
    mod = calling(function(body, *inputs), ((5, 2, 7), "int32"), *inputs)
    executable = tvm_hybrid.compile(mod, num_threads=1)
    kernels = [d.kernel for d in executable.explain() if d.op == "batch_matmul"]
    assert [microkernel_named(kernel).b_dtype for kernel in kernels] == ["int8"]
    arrays = randoms(*inputs)
    expected = np.einsum("kni,njk->inj", *(x.astype(np.int32) for x in arrays))
    np.testing.assert_array_equal(executable.run(*arrays)[0].numpy(), expected)


def bytes_of(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "int32")


WEIGHT = relax.const(np.random.default_rng(1).integers(-128, 128, (33, 16), dtype="int8"))
TAPS = relax.const(np.random.default_rng(1).integers(-128, 128, (8, 4, 3, 3), dtype="int8"))
U8 = "uint8"
QUANTISED: dict[str, tuple[Body, tuple[Tensor, ...], str]] = {
    "weight": (lambda x: op.matmul(bytes_of(x), bytes_of(WEIGHT)), (((7, 33), U8),), "matmul"),
    "turned weight": (
        lambda x: op.matmul(bytes_of(x), op.permute_dims(bytes_of(WEIGHT))),
        (((7, 16), U8),),
        "matmul",
    ),
    "zero point": (
        lambda x: op.matmul(op.subtract(bytes_of(x), relax.const(3)), bytes_of(WEIGHT)),
        (((7, 33), U8),),
        "matmul",
    ),
    "turned and shifted": (
        lambda x: op.matmul(
            op.permute_dims(op.subtract(bytes_of(x), relax.const(3))), bytes_of(WEIGHT)
        ),
        (((33, 7), U8),),
        "matmul",
    ),
    "batches": (
        lambda x, y: op.matmul(bytes_of(x), op.permute_dims(bytes_of(y), [0, 2, 1])),
        (((3, 7, 33), U8), ((3, 5, 33), "int8")),
        "batch_matmul",
    ),
    "windows": (
        lambda x: op.nn.conv2d(bytes_of(x), bytes_of(TAPS), padding=(1, 1), out_dtype="int32"),
        (((1, 4, 9, 9), U8),),
        "conv2d",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", QUANTISED)
def test_widened_bytes_are_multiplied_as_bytes(name: str, stage: str) -> None:
    body, inputs, wanted = QUANTISED[name]
    plain = module(body, *inputs)
    executable = tvm_hybrid.compile(legalized(plain, stage), num_threads=1)
    (product,) = [d for d in executable.explain() if d.kernel and d.taken]
    assert product.op == wanted
    assert microkernel_named(product.kernel).b_dtype == "int8"
    arrays = randoms(*inputs)
    np.testing.assert_array_equal(executable.run(*arrays)[0].numpy(), run(plain, arrays)[0])


def test_a_block_that_no_operator_computes_is_a_function_of_its_own() -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        odd = te.compute((4, 8), lambda i, j: a[i, j] * tirx.Cast(F, i % 3), "odd")
        return summed((4, 5), (8,), lambda i, j, k: odd[i, k] * b[k, j])

    inputs = ((4, 8), F), ((8, 5), F)
    mod = calling(function(body, *inputs), ((4, 5), F), *inputs)
    found, (decision,) = lifted(mod)
    assert names(found) == ["call_tir", "matmul"]
    assert "separate function: odd: a value that no operator computes" in decision.reason
    a, b = randoms(*inputs)
    expected = (a * (np.arange(4) % 3)[:, None]) @ b
    np.testing.assert_allclose(run(found, [a, b])[0], expected, 1e-4, 1e-4)


def test_values_of_another_block() -> None:
    shapes = ((4, 8), F), ((8, 5), F), ((5, 8), F)
    x, w, v = (relax.Var(f"x{i}", relax.TensorType(*each)) for i, each in enumerate(shapes))
    builder = relax.BlockBuilder()

    def call(steps: int, columns: int, *factors: relax.Expr) -> relax.Call:
        func = function(
            lambda a, b: summed((4, columns), (steps,), lambda i, j, k: a[i, k] * b[k, j]),
            *(((4, steps), F), ((steps, columns), F)),
        )
        gvar = builder.add_func(func.without_attr("global_symbol"), "program")
        return builder.emit(relax.call_tir(gvar, factors, relax.TensorType((4, columns), F)))

    with builder.function("main", [x, w, v]):
        with builder.dataflow():
            first = builder.emit_output(call(8, 5, x, w))
        power = builder.emit(op.exp(v))
        with builder.dataflow():
            result = builder.emit_output(call(5, 8, first, power))
        builder.emit_func_output(result)
    found, decisions = lifted(builder.get())
    assert [decision.taken for decision in decisions] == [True, True]
    assert names(found) == ["matmul", "exp", "matmul"]
    arrays = randoms(*shapes)
    expected = arrays[0] @ arrays[1] @ np.exp(arrays[2])
    np.testing.assert_allclose(run(found, arrays)[0], expected, 1e-4, 1e-4)


THREE = {
    "bi,oij,bj->bo": (((8, 5), (7, 5, 6), (8, 6)), ["matmul", "multiply", "sum"]),
    "ab,bc,cd->ad": (((2, 3), (3, 50), (50, 4)), ["matmul", "matmul"]),
    "bik,kj,b->bij": (((1, 8, 5), (5, 7), (1,)), ["matmul", "multiply"]),
}


@pytest.mark.parametrize("subscripts", THREE)
def test_three_tensors_in_one_block(subscripts: str) -> None:
    shapes, wanted = THREE[subscripts]
    plain = module(lambda *given: op.einsum(given, subscripts), *((s, F) for s in shapes))
    found, (decision,) = lifted(legalized(plain))
    moved = ("reshape", "permute_dims")
    assert [name for name in names(found) if name not in moved] == wanted
    assert decision.taken and "; then " in decision.reason
    arrays = randoms(*((shape, F) for shape in shapes))
    expected = np.einsum(subscripts, *arrays)
    np.testing.assert_allclose(run(found, arrays)[0], expected, 1e-4, 1e-4)


def test_three_tensors_of_a_user() -> None:
    def body(a: te.Tensor, b: te.Tensor, c: te.Tensor) -> te.Tensor:
        return summed((6, 5), (16, 8), lambda i, j, k, m: a[i, k] * b[k, m] * c[m, j])

    inputs = ((6, 16), F), ((16, 8), F), ((8, 5), F)
    mod = calling(function(body, *inputs), ((6, 5), F), *inputs)
    executable = tvm_hybrid.compile(mod, num_threads=1)
    products = [each for each in executable.explain() if each.op == "batch_matmul"]
    assert len(products) == 2
    a, b, c = randoms(*inputs)
    np.testing.assert_allclose(executable.run(a, b, c)[0].numpy(), a @ b @ c, 1e-4, 1e-4)


def stays(mod: IRModule) -> str:
    """Asserts that nothing is lifted; returns the reason, or "" if there is no decision."""
    found, decisions = lifted(mod)
    assert_structural_equal(found, relax.transform.CanonicalizeBindings()(mod))
    return decisions[0].reason if decisions else ""


def product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return summed((4, 5), (8,), lambda i, j, k: a[i, k] * b[k, j])


INPUTS = ((4, 8), F), ((8, 5), F)


def test_what_somebody_scheduled_stays() -> None:
    made = function(product, *INPUTS)
    schedule = tvm.s_tir.Schedule(IRModule({"main": made}))
    loops = schedule.get_loops(schedule.get_sblock("compute"))
    schedule.parallel(loops[0])
    assert stays(calling(schedule.mod["main"], ((4, 5), F), *INPUTS)) == ""
    assert stays(calling(made.with_attr("tirx.is_scheduled", True), ((4, 5), F), *INPUTS)) == ""


def test_functions_without_products_stay_by_themselves() -> None:
    mod = legalized(module(lambda x: op.nn.relu(x), ((4, 8), F)))
    assert stays(mod) == ""


@pytest.mark.parametrize(
    ("body", "out", "inputs", "reason"),
    [
        (
            lambda a, b: summed((4,), (8,), lambda i, k: a[i, k] * b[k]),
            ((4,), F),
            (((4, 8), F), ((8,), F)),
            "a matrix by a vector",
        ),
        (
            lambda a, b: summed((4, 5), (8,), lambda i, j, k: a[i + k] * b[k, j]),
            ((4, 5), F),
            (((11,), F), ((8, 5), F)),
            "gathered elements are multiplied only 5 times each",
        ),
        (
            lambda a, b, c: summed((4,), (8,), lambda i, k: a[i, k] * b[i, k] * c[k]),
            ((4,), F),
            (((4, 8), F), ((4, 8), F), ((8,), F)),
            "a matrix by a vector",
        ),
        (
            lambda a, b, c: summed((4, 5), (8,), lambda i, j, k: a[i + k] * b[k, j] * c[k]),
            ((4, 5), F),
            (((11,), F), ((8, 5), F), ((8,), F)),
            "products of 3 tensors, one of which has to be gathered",
        ),
        (
            lambda a, b, c: summed((4, 5), (8,), lambda i, j, k: a[i, k] * b[k, j] * c[k]),
            ((4, 5), "float64"),
            (((4, 8), "float64"), ((8, 5), "float64"), ((8,), "float64")),
            "products of 3 tensors of float64",
        ),
    ],
)
def test_refusals(
    body: Callable[..., Any], out: Tensor, inputs: tuple[Tensor, ...], reason: str
) -> None:
    assert reason in stays(calling(function(body, *inputs), out, *inputs))


def test_a_compiled_module_runs_the_kernels_of_its_operators() -> None:
    w, b = constant(32, 48), constant(48)
    plain = module(lambda x: op.nn.relu(op.add(op.matmul(x, w), b)), ((16, 32), F))
    executables = [tvm_hybrid.compile(m, num_threads=1) for m in (plain, legalized(plain))]
    kernels = [
        [(d.op, d.kernel, d.workload) for d in executable.explain() if d.op != TENSORIZE]
        for executable in executables
    ]
    assert kernels[0] == kernels[1]
    x = randoms(((16, 32), F))
    results = [executable.run(*x)[0].numpy() for executable in executables]
    np.testing.assert_array_equal(*results)
