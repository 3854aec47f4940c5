"""Measures programs that have no template of their own: `python -m tools.tensorization`.

    taskset -c 1 python -m tools.tensorization einsums
    taskset -c 1 python -m tools.tensorization workloads
    taskset -c 1 python -m tools.tensorization integers --row T2D

`einsums`: contractions of two or three tensors, beside a matmul of equal sizes and beside TVM
without us. `workloads`: the operators of the table of automatic tensorization (Feng et al., arXiv
2207.04296), legalised by TVM before they reach us, beside the operator that is not legalised, and
beside ONNX Runtime. `integers`: these operators of uint8 by int8, summed in int32, beside
MatMulInteger and ConvInteger. One thread; the results are least times of calls in turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import numpy as np
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import IRModule, relax

import tvm_hybrid
from relay_passes.ir.decisions import TENSORIZE
from tir_schedules.tensorize.arrangement import Contraction, RefusedError, check
from tvm_hybrid.report.timing import markdown_table, time_calls

SECONDS = 0.02
TURNS = 5

EINSUMS: dict[str, dict[str, int]] = {
    "ij,jk->ik": {"i": 256, "j": 256, "k": 256},
    "ji,jk->ik": {"i": 256, "j": 256, "k": 256},
    "ij,kj->ki": {"i": 256, "j": 256, "k": 256},
    "bij,bkj->bki": {"b": 8, "i": 128, "j": 128, "k": 128},
    "bij,jk->bik": {"b": 8, "i": 64, "j": 128, "k": 128},
    "bhqd,bhkd->bhqk": {"b": 1, "h": 12, "q": 128, "k": 128, "d": 64},
    "bqhd,bkhd->bhqk": {"b": 1, "h": 12, "q": 128, "k": 128, "d": 64},
    "bhqk,bkhd->bqhd": {"b": 1, "h": 12, "q": 128, "k": 128, "d": 64},
    "btd,dhk->bthk": {"b": 1, "t": 128, "d": 384, "h": 12, "k": 32},
    "bthk,hkd->btd": {"b": 1, "t": 128, "d": 384, "h": 12, "k": 32},
    "bi,oij,bj->bo": {"b": 64, "i": 32, "j": 32, "o": 32},
    "ik,kj,k->ij": {"i": 256, "j": 256, "k": 256},
    "abc,bcd->ad": {"a": 64, "b": 16, "c": 16, "d": 128},
    "abc,cbd->ad": {"a": 64, "b": 16, "c": 16, "d": 128},
    "abcd,cdef->abef": dict.fromkeys("abcdef", 16),
    "abcd,dcef->abef": dict.fromkeys("abcdef", 16),
    "acbd,cedf->abef": dict.fromkeys("abcdef", 16),
    "abcde,cef->abdf": {"a": 8, "b": 8, "c": 16, "d": 8, "e": 16, "f": 64},
    "nchw,oc->nohw": {"n": 1, "c": 64, "h": 28, "w": 28, "o": 128},
    "kmi,knj->mnij": {"k": 64, "m": 16, "i": 16, "n": 16, "j": 16},
    "bij,bj->bi": {"b": 64, "i": 128, "j": 128},
    "i,j->ij": {"i": 512, "j": 512},
}


def relax_module(
    body: Callable[..., relax.Expr], inputs: Sequence[tuple[Sequence[int], str]]
) -> IRModule:
    """A module whose main(*inputs) computes `body` in one dataflow block."""
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", relax.TensorType(*each)) for i, each in enumerate(inputs)]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(*given)))
        builder.emit_func_output(result)
    return builder.get()


def operands(subscripts: str, extents: dict[str, int]) -> list[tuple[list[int], str]]:
    """Shape and type of every operand of an einsum."""
    inputs = subscripts.partition("->")[0].split(",")
    return [([extents[label] for label in labels], "float32") for labels in inputs]


def matmul_shapes(subscripts: str, extents: dict[str, int]) -> list[tuple[list[int], str]] | None:
    """The operands of the matrix product with the sizes of an einsum; None if there is none."""
    inputs, out = subscripts.split("->")
    parts = inputs.split(",")
    if len(parts) != 2:
        return None
    given = Contraction(tuple(parts[0]), tuple(parts[1]), tuple(out), extents)
    try:
        check(given)
    except RefusedError:
        return None
    batch, rows, columns, steps = (
        given.size(labels) for labels in (given.batches, given.rows, given.columns, given.steps)
    )
    leading = [batch] if batch > 1 else []
    return [([*leading, rows, steps], "float32"), ([*leading, steps, columns], "float32")]


def arrays(inputs: Sequence[tuple[Sequence[int], str]]) -> list[np.ndarray]:
    """Random operands of whole numbers, so that results can be compared."""
    rng = np.random.default_rng(0)
    least_value = {"uint8": 0}
    return [
        rng.integers(least_value.get(dtype, -3), 4, shape).astype(dtype) for shape, dtype in inputs
    ]


def ours(
    mod: IRModule, values: Sequence[np.ndarray]
) -> tuple[Callable[[], Any], tvm_hybrid.Executable]:
    """A call of a module compiled by tvm_hybrid, and its executable."""
    executable = tvm_hybrid.compile(mod, num_threads=1)
    tensors = [tvm.runtime.tensor(value) for value in values]
    return lambda: executable.run(*tensors)[0], executable


def stock(mod: IRModule, values: Sequence[np.ndarray]) -> Callable[[], Any]:
    """A call of a module compiled by TVM."""
    library = tvm.compile(mod, target=tvm_hybrid.resolve_target(None))
    main = relax.VirtualMachine(library, tvm.cpu())["main"]
    tensors = [tvm.runtime.tensor(value) for value in values]
    return lambda: main(*tensors)


def least(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least seconds of every call; the calls take turns."""
    best = dict.fromkeys(calls, math.inf)
    for _ in range(TURNS):
        for name, call in calls.items():
            best[name] = min(best[name], *time_calls(call, SECONDS))
    return best


def why(executable: tvm_hybrid.Executable) -> str:
    """The decision about the products of a module."""
    notes = [each for each in executable.explain() if each.op == TENSORIZE]
    return notes[0].reason.partition("; of ")[0] if notes else "no product"


def einsum_rows(chosen: Sequence[str]) -> Iterator[list[str]]:
    """The rows of the table of einsums for `chosen` ones."""
    for subscripts in chosen:
        extents = EINSUMS[subscripts]
        inputs = operands(subscripts, extents)
        values = arrays(inputs)

        def body(*given: relax.Var, text: str = subscripts) -> relax.Expr:
            return relax.op.einsum(given, text)

        mod = relax_module(body, inputs)
        calls: dict[str, Callable[[], Any]] = {}
        calls["ours"], executable = ours(mod, values)
        calls["stock"] = stock(mod, values)
        shapes = matmul_shapes(subscripts, extents)
        if shapes is not None:
            calls["matmul"], _ = ours(relax_module(relax.op.matmul, shapes), arrays(shapes))
        expected = np.einsum(subscripts, *values, optimize=True)
        np.testing.assert_allclose(calls["ours"]().numpy(), expected, rtol=1e-5, atol=1e-3)
        best = least(calls)
        beside = f"{best['matmul'] / best['ours']:.2f}" if shapes else "-"
        yield [
            f"`{subscripts}`",
            f"{best['ours'] * 1e6:.0f}",
            beside,
            f"{best['stock'] / best['ours']:.1f}",
            why(executable),
        ]


def _convolution(rank: int, **attrs: Any) -> Callable[..., relax.Expr]:
    operator = getattr(relax.op.nn, f"conv{rank}d")
    return lambda x, w: operator(x, w, **attrs)


# Operator in Relax, shapes of data and weight, and attributes of ONNX's Conv.
WORKLOADS: dict[str, tuple[Callable[..., relax.Expr], list[int], list[int], dict[str, Any]]] = {
    "C1D": (
        _convolution(1, strides=2, padding=1),
        [1, 64, 256],
        [128, 64, 3],
        {"strides": [2], "pads": [1, 1]},
    ),
    "C2D": (
        _convolution(2, strides=(2, 2), padding=(1, 1)),
        [1, 64, 56, 56],
        [64, 64, 3, 3],
        {"strides": [2, 2], "pads": [1] * 4},
    ),
    "C3D": (
        _convolution(3, padding=(1, 1, 1)),
        [1, 16, 8, 28, 28],
        [32, 16, 3, 3, 3],
        {"pads": [1] * 6},
    ),
    "DEP": (
        _convolution(2, padding=(1, 1), groups=64),
        [1, 64, 56, 56],
        [64, 1, 3, 3],
        {"pads": [1] * 4, "group": 64},
    ),
    "DIL": (
        _convolution(2, padding=(2, 2), dilation=(2, 2)),
        [1, 64, 28, 28],
        [64, 64, 3, 3],
        {"pads": [2] * 4, "dilations": [2, 2]},
    ),
    "GMM": (lambda x, w: relax.op.matmul(x, w), [128, 768], [768, 768], {}),
    "GRP": (
        _convolution(2, padding=(1, 1), groups=4),
        [1, 64, 56, 56],
        [64, 16, 3, 3],
        {"pads": [1] * 4, "group": 4},
    ),
    "T2D": (
        lambda x, w: relax.op.nn.conv2d_transpose(x, w, strides=(2, 2), padding=(1, 1)),
        [1, 64, 14, 14],
        [64, 32, 4, 4],
        {"strides": [2, 2], "pads": [1] * 4},
    ),
    "T2D in groups": (
        lambda x, w: relax.op.nn.conv2d_transpose(x, w, strides=(2, 2), padding=(1, 1), groups=4),
        [1, 64, 14, 14],
        [64, 32, 4, 4],
        {"strides": [2, 2], "pads": [1] * 4, "group": 4},
    ),
}


def peer(name: str, weight: np.ndarray, x: np.ndarray, attrs: dict[str, Any]) -> Callable[[], Any]:
    """A call of the operator in ONNX Runtime; NotImplementedError if it has no such operator."""
    kind = {"GMM": "MatMul", "T2D": "ConvTranspose"}.get(name.partition(" ")[0], "Conv")
    kind += "Integer" if weight.dtype == np.int8 else ""
    node = helper.make_node(kind, ["x", "w"], ["y"], **attrs)
    given = helper.np_dtype_to_tensor_dtype(x.dtype)
    out = TensorProto.INT32 if weight.dtype == np.int8 else TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info("x", given, x.shape)],
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime's errors have no common type
        raise NotImplementedError(f"ONNX Runtime has no {kind} for it") from error
    return lambda: session.run(None, {"x": x})[0]


def workload_module(name: str, weight: np.ndarray, data: str) -> IRModule:
    """A module of one operator with one input; integers are widened first."""
    operator, shape, *_ = WORKLOADS[name]

    def body(x: relax.Var) -> relax.Expr:
        if data == "float32":
            return operator(x, relax.const(weight))
        wide = (relax.op.astype(each, "int32") for each in (x, relax.const(weight)))
        return operator(*wide)

    return relax_module(body, [(shape, data)])


def workload_rows(chosen: Sequence[str], data: str, weights: str) -> Iterator[list[str]]:
    """The rows of the table of workloads for `chosen` ones, with the given types."""
    for name in chosen:
        _, shape, kernel, attrs = WORKLOADS[name]
        (x,), (weight,) = arrays([(shape, data)]), arrays([(kernel, weights)])
        mod = workload_module(name, weight, data)
        calls: dict[str, Callable[[], Any]] = {}
        calls["ours"], executable = ours(relax.transform.LegalizeOps()(mod), [x])
        calls["ordinary"], _ = ours(mod, [x])
        try:
            calls["ort"] = peer(name, weight, x, attrs)
        except NotImplementedError:
            expected = calls["ordinary"]().numpy()
        else:
            expected = calls["ort"]()
        np.testing.assert_allclose(calls["ours"]().numpy(), expected, rtol=1e-3, atol=1e-2)
        best = least(calls)
        regions = [each.op for each in executable.explain() if each.taken and each.kernel]
        yield [
            name,
            f"{best['ours'] * 1e6:.0f}",
            f"{best['ordinary'] / best['ours']:.2f}",
            f"{best['ort'] / best['ours']:.2f}" if "ort" in best else "-",
            why(executable),
            ", ".join(regions),
        ]


@click.command()
@click.argument("table", type=click.Choice(["einsums", "workloads", "integers"]))
@click.option("--row", "chosen", multiple=True, help="Measure only this row; may be repeated.")
def main(table: str, chosen: tuple[str, ...]) -> None:
    """Measures programs without a template of their own, and prints a Markdown table."""
    known = EINSUMS if table == "einsums" else WORKLOADS
    unknown = set(chosen) - set(known)
    if unknown:
        raise click.BadParameter(
            f"no row {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    names = chosen or tuple(known)
    if table == "einsums":
        heads = ["einsum", "us", "matmul / ours", "TVM / ours", "as"]
        rows = einsum_rows(names)
    else:
        heads = ["workload", "us", "ordinary / ours", "ORT / ours", "as", "template"]
        types = ("uint8", "int8") if table == "integers" else ("float32", "float32")
        rows = workload_rows(names, *types)
    for line in markdown_table(heads, rows):
        click.echo(line)


if __name__ == "__main__":
    main()
