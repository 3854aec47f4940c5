"""A `torch.nn.Module` as an exported program."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from microkernels.base.errors import ModelError


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
