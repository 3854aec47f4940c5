"""Reads a model in any accepted form as a Relax module with named inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tvm
from tvm import IRModule, ir, relax, tirx

from microkernels.base.errors import Argument, CompileError, InputValueError, ModelError, ShapeError
from microkernels.base.memory import without_full_collections
from microkernels.base.tvm_compat.relax import set_type
from relay_passes.ir.entries import MAIN
from relay_passes.ir.rewrite import with_values

from ..explain.origins import NO_NODES, ModelNodes
from ..runtime.feeds import InputValue
from ..runtime.tensors import DeclaredInterface, OutputInfo, TensorInfo, text_of
from .imported_model import output_info, returned_types
from .onnx.reader.model_bytes import is_onnx

Inputs = tuple[TensorInfo, ...]
Outputs = tuple[OutputInfo, ...]


class SourceModel(NamedTuple):
    """A Relax module whose function `main` has these inputs and outputs.

    The inputs of `values` are constants inside; `limits` are the largest numbers that open sizes
    of inputs may be. `declared` is the interface as an ONNX model with open sizes declares it,
    `nodes` are its nodes.
    """

    mod: IRModule
    inputs: Inputs
    outputs: Outputs
    values: tuple[InputValue, ...] = ()
    limits: Mapping[str, int] = {}
    declared: DeclaredInterface | None = None
    nodes: ModelNodes = NO_NODES


@without_full_collections()
def import_model(
    model: Any,
    shapes: Mapping[str, Any] | None,
    values: Mapping[str, Any] | None = None,
    keep_open: bool = False,
    check_indices: bool = False,
) -> SourceModel:
    """The module, its inputs and its outputs.

    Parameters
    ----------
    model : path-like, bytes, onnx.ModelProto, tvm.IRModule or torch ExportedProgram
        A Relax module needs a function `main`, or a single public one.
    shapes : mapping, optional
        Shapes of inputs, or sizes of symbolic dimensions; of a Relax module the latter only.
    values : mapping, optional
        Values of inputs of an ONNX model.
    keep_open : bool
        Whether dimensions without a size stay open.
    check_indices : bool
        Whether the program checks indices; of an ONNX model.

    Raises
    ------
    CompileError
        If indices are to be checked of another model than an ONNX one.
    ModelError
        If it is none of these, or not a valid model.
    ShapeError
        If a dimension is left without a size, and may not stay open.
    InputValueError
        If an input is left without a value that must be known, or a value does not fit.
    """
    if values and not is_onnx(model):
        raise InputValueError(
            Argument("values"),
            f" can be given for ONNX models only, not for a {type(model).__name__}; bind "
            "them in the model itself, for example by relax.transform.BindParams",
        )
    if check_indices and not is_onnx(model):
        raise CompileError(
            Argument("check_indices"),
            f" is for ONNX models only, not for a {type(model).__name__}; give False",
        )
    if isinstance(model, IRModule):
        return _from_relax(model, shapes, keep_open)
    if type(model).__module__.startswith("torch.export"):
        return _from_torch(model, shapes, keep_open)
    if not is_onnx(model):
        raise ModelError(
            f"a {type(model).__name__} is not a model; give a path or the bytes of an ONNX model, "
            "an onnx.ModelProto, a tvm.IRModule or a torch ExportedProgram"
        )
    from . import import_onnx

    imported = import_onnx(
        model, shapes=shapes, values=values, keep_open=keep_open, check_indices=check_indices
    )
    return SourceModel(
        imported.mod,
        tuple(imported.inputs),
        tuple(imported.outputs),
        tuple(imported.values),
        imported.limits,
        imported.declared,
        imported.nodes,
    )


def _from_torch(program: Any, shapes: Mapping[str, Any] | None, keep_open: bool) -> SourceModel:
    from .torch.exported_program import import_program

    mod = import_program(program)
    return _from_relax(mod, shapes, keep_open)


def _from_relax(mod: IRModule, shapes: Mapping[str, Any] | None, keep_open: bool) -> SourceModel:
    mod = with_single_parameters(_with_main(mod))
    if shapes:
        mod = _bind_sizes(mod, shapes)
    function = mod["main"]
    inputs = tuple(_info(var.name, var.ty, keep_open) for var in function.params)
    symbols = [str(var.name) for var in _symbols(function)] if keep_open else []
    types = returned_types(function)
    outputs = tuple(
        output_info(f"output_{i}" if len(types) > 1 else "output", found, symbols=symbols)
        for i, found in enumerate(types)
    )
    return SourceModel(mod, inputs, outputs)


def _with_main(mod: IRModule) -> IRModule:
    """A module with a function main, which may be the only public one under another name."""
    names = [var.name_hint for var in mod.get_global_vars()]
    if "main" in names and isinstance(mod["main"], relax.Function):
        return mod
    public = [
        gvar
        for gvar, function in mod.functions_items()
        if isinstance(function, relax.Function) and "global_symbol" in (function.attrs or ())
    ]
    if len(public) != 1 or "main" in names:
        raise ModelError(
            f"a Relax module needs a function 'main', or a single public one; this one has {names}"
        )
    others = {gvar: each for gvar, each in mod.functions_items() if gvar != public[0]}
    function = mod[public[0]].with_attr("global_symbol", "main")
    main = ir.GlobalVar("main")
    set_type(main, function.ty)  # passes that call it need to know
    return IRModule({**others, main: function}, mod.attrs, mod.global_infos)


def _bind_sizes(mod: IRModule, shapes: Mapping[str, Any]) -> IRModule:
    known = {str(var) for var in _symbols(mod["main"])}
    for name, size in shapes.items():
        if name not in known:
            raise ShapeError(
                f"the Relax module has no symbolic dimension {name!r}; "
                f"it has {', '.join(sorted(known)) or 'none'}",
                argument="shapes",
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ShapeError(
                f"dimension {name!r} needs a size from 0 up, not {size!r}", argument="shapes"
            )
    return relax.transform.BindSymbolicVars(dict(shapes), "main")(mod)


def _symbols(function: relax.Function) -> list[tirx.Var]:
    sizes = [
        size
        for var in function.params
        if isinstance(var.ty, relax.TensorType) and isinstance(var.ty.shape, relax.ShapeExpr)
        for size in var.ty.shape.values
    ]
    return [size for size in sizes if isinstance(size, tirx.Var)]


def _info(name: str, type_: tvm.ir.Type, keep_open: bool) -> TensorInfo:
    if not isinstance(type_, relax.TensorType) or not isinstance(type_.shape, relax.ShapeExpr):
        raise ModelError(f"{name!r} is not a tensor of known rank: {type_}")
    sizes = [text_of(size) for size in type_.shape.values]
    for position, size in enumerate(type_.shape.values):
        if not isinstance(size, (int, tirx.IntImm)) and (not keep_open or sizes[position] is None):
            raise ShapeError(
                f"dimension {position} of {name!r} has no size: {size}; give one by ",
                Argument("shapes", value={str(size): 1}),
            )
    known = tuple(size for size in sizes if size is not None)
    return TensorInfo(name, known, str(type_.dtype))


def with_single_parameters(mod: IRModule) -> IRModule:
    """Parameters that are tuples, as `relax.transform.BundleModelParams` makes them, as single
    ones.

    Before

        def main(x, params: R.Tuple(R.Tensor, R.Tensor)):
            lv = params[0]

    After

        def main(x, params_0, params_1):
            params = (params_0, params_1)
            lv = params_0

    The module with one parameter of `main` for each item of those that are tuples of tensors.

    Others stay, among them tuples of tuples.
    """
    function = mod[MAIN]
    items = {
        parameter: [relax.Var(f"{parameter.name}_{i}", ty) for i, ty in enumerate(fields)]
        for parameter in function.params
        if (fields := _tensors(parameter.ty))
    }
    if not items:
        return mod

    def item(binding: relax.VarBinding) -> relax.Expr | None:
        value = binding.value
        if not isinstance(value, relax.TupleGetItem) or value.tuple_value not in items:
            return None
        return items[value.tuple_value][value.index]

    function = with_values(function, item)
    parameters = [each for p in function.params for each in items.get(p, [p])]
    tuples = [relax.VarBinding(each, relax.Tuple(items[each])) for each in items]
    blocks = [relax.BindingBlock(tuples), *function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body)
    single = relax.Function(parameters, body, function.ret_ty, function.is_pure, function.attrs)
    others = {gvar: each for gvar, each in mod.functions_items() if gvar.name_hint != MAIN}
    made = IRModule(others, mod.attrs, mod.global_infos)
    made[MAIN] = relax.utils.copy_with_new_vars(single)
    return made


def _tensors(ty: ir.Type) -> list[ir.Type]:
    """The items of a tuple of tensors; nothing if it is none."""
    fields = list(ty.fields) if isinstance(ty, relax.TupleType) else []
    return fields if all(isinstance(each, relax.TensorType) for each in fields) else []
