"""What an importer hands to the compiler: a Relax module and its interface."""

from __future__ import annotations

from dataclasses import dataclass

import tvm


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape and dtype of one input or output.

    Parameters
    ----------
    name
        The name in the original model, unchanged.
    shape
        Static dimensions; ``()`` is a scalar.
    dtype
        The numpy name, such as ``"float32"``, ``"int64"`` or ``"bool"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


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
    """

    mod: tvm.IRModule
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
