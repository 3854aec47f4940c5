"""The result of an importer: a Relax module and its interface."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm

from ..explain.model_nodes import NO_NODES, ModelNodes
from ..runtime.input_values import InputValue
from ..runtime.tensors import DeclaredInterface, OutputInfo, TensorInfo


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
