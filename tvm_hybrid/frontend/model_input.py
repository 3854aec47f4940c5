"""Turns a model of any accepted kind into a Relax module with named inputs and outputs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import IRModule, ir, relax, tirx

from microkernels.base.errors import Argument, CompileError, InputValueError, ModelError, ShapeError
from microkernels.base.memory import without_full_collections
from microkernels.base.tvm_compat.relax import set_type
from relay_passes.ir.entries import MAIN
from relay_passes.ir.rewrite import with_values

from ..explain.origins import NO_NODES, ModelNodes
from ..runtime.feeds import InputValue
from ..runtime.tensors import DeclaredInterface, OutputInfo, TensorInfo, names_in, text_of
from .onnx.reader.model_bytes import is_onnx


@dataclass(frozen=True)
class ImportedModel:
    """A model as a Relax module.

    Parameters
    ----------
    mod
        Module whose ``main`` takes the inputs in the order of `inputs` and returns the outputs in
        the order of `outputs` (a tuple if there are several). Weights are constants inside.
    inputs, outputs
        The inputs and outputs, in the model's order and with the model's names.
    values
        The inputs that are constants in the module, because their values were given.
    limits
        Dynamic sizes of inputs, as text, and the largest values that they may have.
    declared
        The inputs and outputs as the model declares them, if sizes may stay dynamic.
    nodes
        The model's nodes; names of variables in `mod` contain their numbers.
    """

    mod: tvm.IRModule
    inputs: list[TensorInfo]
    outputs: list[OutputInfo]
    values: list[InputValue] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    declared: DeclaredInterface | None = None
    nodes: ModelNodes = NO_NODES


@without_full_collections()
def import_model(
    model: Any,
    shapes: Mapping[str, Any] | None,
    values: Mapping[str, Any] | None = None,
    keep_dynamic: bool = False,
    check_indices: bool = False,
) -> ImportedModel:
    """Imports a model of any accepted kind.

    Parameters
    ----------
    model : path-like, bytes, onnx.ModelProto, tvm.IRModule or torch ExportedProgram
        A Relax module needs a function `main`, or a single public one.
    shapes : mapping, optional
        Shapes of inputs, or sizes of symbolic dimensions; for a Relax module only the latter.
    values : mapping, optional
        Values of inputs of an ONNX model.
    keep_dynamic : bool
        Whether dimensions without a size stay dynamic.
    check_indices : bool
        Whether the program checks indices; for ONNX models only.

    Raises
    ------
    CompileError
        If `check_indices` is set for another model than an ONNX model.
    ModelError
        If `model` is of no accepted kind, or not valid.
    ShapeError
        If a dimension has no size, and may not stay dynamic.
    InputValueError
        If the value of an input must be known and is not given, or a value does not fit.
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
        return _from_relax(model, shapes, keep_dynamic)
    if type(model).__module__.startswith("torch.export"):
        from .torch.importer import import_program

        return _from_relax(import_program(model), shapes, keep_dynamic)
    if not is_onnx(model):
        raise ModelError(
            f"a {type(model).__name__} is not a model; give a path or the bytes of an ONNX model, "
            "an onnx.ModelProto, a tvm.IRModule or a torch ExportedProgram"
            + ("; a file's bytes are its read()" if hasattr(model, "read") else "")
        )
    from . import import_onnx

    return import_onnx(
        model, shapes, values, keep_dynamic=keep_dynamic, check_indices=check_indices
    )


def _from_relax(
    mod: IRModule, shapes: Mapping[str, Any] | None, keep_dynamic: bool
) -> ImportedModel:
    mod = with_single_parameters(_with_main(mod))
    if shapes:
        known = _symbols(mod)
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
        mod = relax.transform.BindSymbolicVars(dict(shapes), "main")(mod)
    inputs = []
    for name, found in ((var.name, var.ty) for var in mod["main"].params):
        if not isinstance(found, relax.TensorType) or not isinstance(found.shape, relax.ShapeExpr):
            raise ModelError(f"{name!r} is not a tensor of known rank: {found}")
        sizes = [text_of(size) for size in found.shape.values]
        for position, size in enumerate(found.shape.values):
            is_known = isinstance(size, (int, tirx.IntImm))
            if not is_known and (not keep_dynamic or sizes[position] is None):
                raise ShapeError(
                    f"dimension {position} of {name!r} has no size: {size}; give one by ",
                    Argument("shapes", value={str(size): 1}),
                )
        known_sizes = tuple(size for size in sizes if size is not None)
        inputs.append(TensorInfo(name, known_sizes, str(found.dtype)))
    symbols = _symbols(mod) if keep_dynamic else ()
    types = returned_types(mod["main"])
    outputs = [
        output_info(f"output_{i}" if len(types) > 1 else "output", found, symbols=symbols)
        for i, found in enumerate(types)
    ]
    return ImportedModel(mod, inputs, outputs)


def _with_main(mod: IRModule) -> IRModule:
    """The module with its only public function renamed to `main`, if it has no `main`."""
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
    set_type(main, function.ty)  # passes that call `main` need its type
    return IRModule({**others, main: function}, mod.attrs, mod.global_infos)


def _symbols(mod: IRModule) -> set[str]:
    """The names of dynamic sizes in the inputs of `main`."""
    types = [var.ty for var in mod["main"].params if isinstance(var.ty, relax.TensorType)]
    shapes = [each.shape.values for each in types if isinstance(each.shape, relax.ShapeExpr)]
    return {str(size.name) for shape in shapes for size in shape if isinstance(size, tirx.Var)}


def with_single_parameters(mod: IRModule) -> IRModule:
    """Splits parameters that are tuples of tensors, as from `relax.transform.BundleModelParams`.

    Before

        def main(x, params: R.Tuple(R.Tensor, R.Tensor)):
            lv = params[0]

    After

        def main(x, params_0, params_1):
            params = (params_0, params_1)
            lv = params_0

    `main` gets one parameter for each field of such a tuple. Other parameters stay, tuples of
    tuples among them.
    """
    function = mod[MAIN]
    items = {}
    for parameter in function.params:
        types = parameter.ty.fields if isinstance(parameter.ty, relax.TupleType) else ()
        if types and all(isinstance(each, relax.TensorType) for each in types):
            name = parameter.name
            items[parameter] = [relax.Var(f"{name}_{i}", ty) for i, ty in enumerate(types)]
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


def returned_types(function: relax.Function) -> list[ir.Type]:
    """The types of all outputs, from the function's body.

    The function's declared return type loses the whole shape if one size depends on data.
    """
    found = function.body.body.ty
    return list(found.fields) if isinstance(found, relax.TupleType) else [found]


def output_info(
    name: str,
    found: ir.Type,
    names: Sequence[int | str | None] | None = None,
    symbols: Collection[str] = (),
) -> OutputInfo:
    """Describes an output of this type.

    Parameters
    ----------
    names
        Declared names of the shape's sizes, for sizes that depend on data.
    symbols
        Dynamic sizes of inputs, in terms of which sizes are written.

    Raises
    ------
    ModelError
        If it is not a tensor, or its rank is not known.
    """
    if not isinstance(found, relax.TensorType) or found.ndim < 0:
        raise ModelError(f"output {name!r} is not a tensor of known rank: {found}")
    shape = found.shape
    sizes = list(shape.values) if isinstance(shape, relax.ShapeExpr) else [None] * found.ndim
    if names is None or len(names) != len(sizes):
        names = [None] * len(sizes)
    known: list[int | str | None] = []
    for size, declared in zip(sizes, names, strict=True):
        text = text_of(size) if symbols else None
        if isinstance(size, int | tirx.IntImm):
            known.append(int(size))
        elif isinstance(text, str) and names_in(text) <= {*symbols}:
            known.append(text)  # in terms of the sizes of inputs
        else:
            known.append(declared if isinstance(declared, str) else None)
    return OutputInfo(name, tuple(known), str(found.dtype))


def is_module(model: Any) -> bool:
    """Whether a model is a `torch.nn.Module`, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def exported(module: Any, example_inputs: Any, dynamic_shapes: Any = None) -> Any:
    """Exports a module by `torch.export`.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode.
    example_inputs : tuple, list or mapping
        The arguments of the module's `forward`, in order or by name.
    dynamic_shapes : optional
        As `torch.export.export` takes it.

    Raises
    ------
    ModelError
        If the module is in training mode, there are no example inputs, or torch cannot export it.
    """
    import torch

    name = type(module).__name__
    if module.training:
        raise ModelError(f"the module {name} is in training mode; call its eval() first")
    if not isinstance(example_inputs, (tuple, list, Mapping)):
        raise ModelError(
            f"a torch module needs example_inputs=(x, ...), or {{name: x}}, for the module {name}; "
            f"not {type(example_inputs).__name__}"
        )
    named = isinstance(example_inputs, Mapping)
    arguments = () if named else tuple(example_inputs)
    by_name = dict(example_inputs) if named else {}
    try:
        with torch.no_grad():
            return torch.export.export(module, arguments, by_name, dynamic_shapes=dynamic_shapes)
    except Exception as error:
        raise ModelError(f"torch.export cannot export the module {name}: {error}") from error
