"""The result of an importer: a Relax module and its interface."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import ir, relax, tirx

from microkernels.base.errors import ModelError

from ..explain.origins import NO_NODES, ModelNodes
from ..runtime.feeds import InputValue
from ..runtime.tensors import DeclaredInterface, OutputInfo, TensorInfo, names_in, text_of


@dataclass(frozen=True)
class ImportedModel:
    """A model in Relax.

    Parameters
    ----------
    mod
        Module whose ``main`` takes the inputs in the order of `inputs` and returns the outputs in
        the order of `outputs` (a tuple if there are several). Weights are constants inside.
    inputs, outputs
        The interface, in the model's order and with the model's names.
    values
        The inputs that are constants inside, since their values were given.
    limits
        Open sizes of inputs, in words, and the largest numbers that they may be.
    declared
        The inputs and outputs as the model declares them, if sizes may stay open.
    nodes
        The model's nodes, which variables of `mod` tell by their names.
    """

    mod: tvm.IRModule
    inputs: list[TensorInfo]
    outputs: list[OutputInfo]
    values: list[InputValue] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    declared: DeclaredInterface | None = None
    nodes: ModelNodes = NO_NODES


def returned_types(function: relax.Function) -> list[ir.Type]:
    """The types of all outputs.

    Those of the body: a function's own return type forgets the rest of a shape in which one size
    depends on data.
    """
    found = function.body.body.ty
    return list(found.fields) if isinstance(found, relax.TupleType) else [found]


def output_info(
    name: str,
    found: ir.Type,
    names: Sequence[int | str | None] | None = None,
    symbols: Collection[str] = (),
) -> OutputInfo:
    """An output of this type.

    Parameters
    ----------
    names
        What the model declares to be the shape: the names of sizes that depend on data.
    symbols
        The open sizes of inputs, of which sizes are told in words.

    Raises
    ------
    ModelError
        It is not a tensor, or its number of dimensions is not known.
    """
    if not isinstance(found, relax.TensorType) or found.ndim < 0:
        raise ModelError(f"output {name!r} is not a tensor of known rank: {found}")
    shape = found.shape
    sizes = list(shape.values) if isinstance(shape, relax.ShapeExpr) else [None] * found.ndim
    if names is None or len(names) != len(sizes):
        names = [None] * len(sizes)
    known = tuple(
        _of_inputs(size, symbols) or _text(declared)
        if not isinstance(size, int | tirx.IntImm)
        else int(size)
        for size, declared in zip(sizes, names, strict=True)
    )
    return OutputInfo(name, known, str(found.dtype))


def _of_inputs(size: Any, symbols: Collection[str]) -> str | None:
    """A size in terms of those of inputs, in words; None if it is not so simple."""
    text = text_of(size) if symbols else None
    return text if isinstance(text, str) and names_in(text) <= {*symbols} else None


def _text(declared: int | str | None) -> str | None:
    return declared if isinstance(declared, str) else None


def is_module(model: Any) -> bool:
    """Whether a model is a `torch.nn.Module`; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def exported(module: Any, example_inputs: Any, dynamic_shapes: Any = None) -> Any:
    """The program that `torch.export` makes of a module.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode.
    example_inputs : tuple, list or mapping
        The arguments of its `forward`, or those by name.
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
