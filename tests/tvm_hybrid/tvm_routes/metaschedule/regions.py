"""Regions, their records and Relax operators, for tests of MetaSchedule's databases."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import tvm
from tvm import IRModule, relax

from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.records.record import Record, make_record
from tvm_hybrid.targets.resolve import host_target

RELU_OF_SUM = (EpilogueOp("add", (0, 1)), EpilogueOp("relu", (2,)))
CONV: dict[str, Attribute] = {
    "strides": (1, 1),
    "padding": (1, 1, 1, 1),
    "dilation": (1, 1),
    "groups": 1,
}
AXES: dict[str, Attribute] = {"a_axes": (0, 1, 2), "b_axes": (0, 1, 2)}


def matmul(m: int, k: int, n: int, dtypes: tuple[str, str] = ("float32", "float32")) -> Region:
    """A product with a constant weight; with bias and relu unless it is an integer product."""
    integer = dtypes[1] == "int8"
    return Region(
        op="matmul",
        inputs=(Tensor((1, m, k), dtypes[0]), Tensor((k, n), dtypes[1], True)),
        operands=() if integer else (Tensor((n,), "float32"),),
        output=Tensor((1, m, n), "int32" if integer else "float32"),
        epilogue=() if integer else RELU_OF_SUM,
    )


def batch_matmul(batch: int, m: int, k: int, n: int) -> Region:
    """A product of two activations."""
    return Region(
        op="batch_matmul",
        inputs=(Tensor((batch, m, k), "float32"), Tensor((batch, k, n), "float32")),
        output=Tensor((batch, m, n), "float32"),
        attrs=dict(AXES),
    )


def transposed_batch_matmul(batch: int, m: int, k: int, n: int) -> Region:
    """A product whose second operand is stored transposed."""
    plain = batch_matmul(batch, m, k, n)
    stored = (plain.inputs[0], Tensor((batch, n, k), "float32"))
    return plain.replace(inputs=stored, attrs={**AXES, "b_axes": (0, 2, 1)})


def conv2d(size: int, channels: int, out_channels: int, stride: int = 1) -> Region:
    """A 3x3 convolution with padding 1, bias and relu."""
    positions = (size - 1) // stride + 1
    return Region(
        op="conv2d",
        inputs=(
            Tensor((1, size, size, channels), "float32"),
            Tensor((3, 3, channels, out_channels), "float32", True),
        ),
        operands=(Tensor((out_channels,), "float32"),),
        output=Tensor((1, positions, positions, out_channels), "float32"),
        attrs={**CONV, "strides": (stride, stride)},
        epilogue=RELU_OF_SUM,
    )


def host_machine(threads: int = 1) -> Machine:
    """This machine with a number of threads."""
    return Machine.from_target(host_target(), threads)


def vector_config(region: Region, machine: Machine) -> Config:
    """The first configuration without AMX, which no schedule expresses."""
    template = template_for(region.op)
    configs = (template.default_config(region, machine), *template.space(region, machine))
    for config in configs:
        kernel = microkernel_named(config.to_dict()["kernel"])
        if not isinstance(kernel, AmxMicrokernel):
            return config
    raise AssertionError(f"no kernel of vectors for {region.key}")


def record_of(region: Region, machine: Machine | None = None, **changes: object) -> Record:
    """A successful record of the configuration that `vector_config` chooses."""
    import msgspec

    machine = machine or host_machine()
    config = vector_config(region, machine)
    template = template_for(region.op)
    made = make_record(region, template, machine, config, "ok", [101.25, 100.1, 103.0], 120.5)
    return msgspec.structs.replace(made, **changes)


def operators(region: Region) -> IRModule:
    """A region's operators as users write them, from shapes and types alone."""
    builder = relax.BlockBuilder()
    names = ("x", "w", "b")
    parameters = [
        relax.Var(name, relax.TensorType(tensor.shape, tensor.dtype))
        for name, tensor in zip(names, (*region.inputs, *region.operands), strict=False)
    ]
    accumulators = "int32" if region.inputs[1].dtype == "int8" else "float32"
    with builder.function("main", parameters):
        with builder.dataflow():
            if region.op == "conv2d":
                result = relax.op.nn.conv2d(
                    parameters[0],
                    parameters[1],
                    strides=list(region.numbers("strides")),
                    padding=(1, 1),
                    data_layout="NHWC",
                    kernel_layout="HWIO",
                    out_dtype="float32",
                )
            else:
                x, w = parameters[:2]
                if region.inputs[0].dtype == "float32" and region.inputs[1].dtype == "bfloat16":
                    x = builder.emit(relax.op.astype(x, "bfloat16"))
                if region.numbers("b_axes") == (0, 2, 1):
                    w = builder.emit(relax.op.permute_dims(w, [0, 2, 1]))
                result = relax.op.matmul(x, w, out_dtype=accumulators)
            result = builder.emit(result)
            if region.epilogue:
                if region.operands:
                    result = builder.emit(relax.op.add(result, parameters[2]))
                result = builder.emit(relax.op.nn.relu(result))
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return builder.get()


def arguments(region: Region) -> list[np.ndarray]:
    """Random values of the region's inputs and operands."""
    rng = np.random.default_rng(0)
    return [_random(rng, tensor) for tensor in (*region.inputs, *region.operands)]


def _random(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    if tensor.dtype in ("uint8", "int8"):
        limits = np.iinfo(tensor.dtype)
        return rng.integers(limits.min, limits.max + 1, tensor.shape).astype(tensor.dtype)
    dtype = ml_dtypes.bfloat16 if tensor.dtype == "bfloat16" else np.float32
    return rng.standard_normal(tensor.shape).astype(dtype)


def expected(region: Region, values: list[np.ndarray]) -> np.ndarray:
    """The expected result, in float64 or exact."""
    result = template_for(region.op).reference(region, values[:2])
    if region.operands:
        result = result + values[2]
    return np.maximum(result, 0) if region.epilogue else result


def as_tensor(values: np.ndarray, dtype: str) -> tvm.runtime.Tensor:
    """An array as TVM's tensor; bfloat16 is passed as the uint16 that stores it."""
    stored = values.view(np.uint16) if dtype == "bfloat16" else values
    return tvm.runtime.empty(values.shape, dtype).copyfrom(stored)


def assert_right(region: Region, result: np.ndarray, values: list[np.ndarray]) -> None:
    """Integers exactly; f32 sums of K products within 2 K eps of their magnitudes' sum.

    A sum of K terms, in any order, errs by (K - 1) eps / 2 of that at most, each product by eps / 2
    (of bfloat16 numbers they are exact); bias and relu add less than one more term.
    """
    right = expected(region, values)
    if result.dtype == np.int32:
        np.testing.assert_array_equal(result, right)
        return
    magnitudes = [np.abs(value.astype(np.float64)) for value in values]
    taps = region.inputs[1].shape[:-2] if region.op == "conv2d" else ()
    terms = np.prod(taps, dtype=int) * region.inputs[0].shape[-1]
    bound = 2 * terms * np.finfo(np.float32).eps * expected(region, magnitudes)
    assert (np.abs(result - right) <= bound).all()
