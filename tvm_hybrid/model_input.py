"""Reads a model in any accepted form as a Relax module with named inputs and outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import tvm
from tvm import IRModule, relax, tirx

from microkernels.errors import InputValueError, ModelError, ShapeError

from .input_values import InputValue
from .output_types import output_info, returned_types
from .tensors import OutputInfo, TensorInfo

Inputs = tuple[TensorInfo, ...]
Outputs = tuple[OutputInfo, ...]


class SourceModel(NamedTuple):
    """A Relax module whose function `main` has these inputs and outputs.

    The inputs of `values` are constants inside.
    """

    mod: IRModule
    inputs: Inputs
    outputs: Outputs
    values: tuple[InputValue, ...] = ()


def import_model(
    model: Any, shapes: Mapping[str, Any] | None, values: Mapping[str, Any] | None = None
) -> SourceModel:
    """The module, its inputs and its outputs.

    Parameters
    ----------
    model : path-like, bytes, onnx.ModelProto, tvm.IRModule or torch ExportedProgram
        A Relax module needs a function `main`.
    shapes : mapping, optional
        Shapes of inputs, or sizes of symbolic dimensions; of a Relax module the latter only.
    values : mapping, optional
        Values of inputs of an ONNX model.

    Raises
    ------
    ModelError
        If it is none of these, or not a valid model.
    ShapeError
        If a dimension is left without a size.
    InputValueError
        If an input is left without a value that must be known, or a value does not fit.
    """
    if values and not is_onnx(model):
        raise InputValueError(
            f"values can be given for ONNX models only, not for a {type(model).__name__}; bind "
            "them in the model itself, for example by relax.transform.BindParams"
        )
    if isinstance(model, IRModule):
        return _from_relax(model, shapes)
    if type(model).__module__.startswith("torch.export"):
        return _from_torch(model, shapes)
    if not is_onnx(model):
        raise ModelError(
            f"a {type(model).__name__} is not a model; give a path or the bytes of an ONNX model, "
            "an onnx.ModelProto, a tvm.IRModule or a torch ExportedProgram"
        )
    from .frontend import import_onnx

    imported = import_onnx(model, shapes=shapes, values=values)
    return SourceModel(
        imported.mod, tuple(imported.inputs), tuple(imported.outputs), tuple(imported.values)
    )


def is_onnx(model: Any) -> bool:
    """Whether a model is given in ONNX: by path, as bytes, or as a ModelProto."""
    in_memory = (bytes, bytearray, memoryview)
    return isinstance(model, (str, os.PathLike, *in_memory)) or (
        type(model).__name__ == "ModelProto"
    )


def _from_torch(program: Any, shapes: Mapping[str, Any] | None) -> SourceModel:
    from tvm.relax.frontend.torch import from_exported_program

    try:
        mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    except Exception as error:
        raise ModelError(f"TVM cannot import this ExportedProgram: {error}") from error
    return _from_relax(mod, shapes)


def _from_relax(mod: IRModule, shapes: Mapping[str, Any] | None) -> SourceModel:
    names = [var.name_hint for var in mod.get_global_vars()]
    if "main" not in names or not isinstance(mod["main"], relax.Function):
        raise ModelError(f"a Relax module needs a function 'main'; this one has {names}")
    if shapes:
        mod = _bind_sizes(mod, shapes)
    function = mod["main"]
    inputs = tuple(_info(var.name, var.ty) for var in function.params)
    types = returned_types(function)
    outputs = tuple(
        output_info(f"output_{i}" if len(types) > 1 else "output", found)
        for i, found in enumerate(types)
    )
    return SourceModel(mod, inputs, outputs)


def _bind_sizes(mod: IRModule, shapes: Mapping[str, Any]) -> IRModule:
    known = {str(var) for var in _symbols(mod["main"])}
    for name, size in shapes.items():
        if name not in known:
            raise ShapeError(
                f"the Relax module has no symbolic dimension {name!r}; "
                f"it has {', '.join(sorted(known)) or 'none'}"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ShapeError(f"dimension {name!r} needs a size from 0 up, not {size!r}")
    return relax.transform.BindSymbolicVars(dict(shapes), "main")(mod)


def _symbols(function: relax.Function) -> list[tirx.Var]:
    sizes = [
        size
        for var in function.params
        if isinstance(var.ty, relax.TensorType) and isinstance(var.ty.shape, relax.ShapeExpr)
        for size in var.ty.shape.values
    ]
    return [size for size in sizes if isinstance(size, tirx.Var)]


def _info(name: str, type_: tvm.ir.Type) -> TensorInfo:
    if not isinstance(type_, relax.TensorType) or not isinstance(type_.shape, relax.ShapeExpr):
        raise ModelError(f"{name!r} is not a tensor of known rank: {type_}")
    for position, size in enumerate(type_.shape.values):
        if not isinstance(size, (int, tirx.IntImm)):
            raise ShapeError(
                f"dimension {position} of {name!r} has no size: {size}; "
                f"give one by shapes={{{str(size)!r}: 1}}"
            )
    return TensorInfo(name, tuple(int(size) for size in type_.shape.values), str(type_.dtype))
