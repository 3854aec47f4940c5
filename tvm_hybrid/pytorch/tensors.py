"""A graph's tensors in the form that a program takes, and arguments that it changes in place.

    cache.index_copy_(2, position, keys)
        ->  main_into(cache, keys, position, out0=cache), of which `row_update` writes one row

The first results of AOTAutograd's graph are new values of arguments. AOTAutograd copies each into
its argument, unless the result is the argument itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tvm import runtime

from ..executable.executable import Executable
from ..frontend.torch.importer import Order
from ..library.manifest import Manifest
from ..runtime.feeds import ALIGNMENT

Change = Callable[[Any], Any]


def given_to(order: Order | None, anywhere: bool, tensor: Any) -> Any:
    """An argument as a tensor that kernels can read.

    Parameters
    ----------
    order : Order or None
        The program's order of the argument's axes.
    anywhere : bool
        Whether kernels read the tensor at any alignment.
    tensor : torch.Tensor
    """
    if order is not None:
        tensor = tensor.permute(order)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.numel():  # torch's strides of an empty tensor are not those that kernels expect
        return runtime.empty(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    if not tensor.is_contiguous():
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.clone() if not anywhere and tensor.data_ptr() % ALIGNMENT else tensor


def taken_from(order: Order | None, shared: bool, result: Any) -> Any:
    """A result as the caller's tensor.

    Parameters
    ----------
    order : Order or None
        Undoes the program's order of the result's axes.
    shared : bool
        Whether the result may share memory with an argument, a constant or another result.
    result : torch.Tensor or tvm.runtime.Tensor
    """
    tensor = result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)
    if shared:
        tensor = tensor.clone()
    return tensor if order is None else tensor.permute(order)


class _Target(NamedTuple):
    """Where an output of a program goes: into an input, or into a new tensor."""

    number: int
    source: int | None
    shape: tuple[int, ...] | None  # of a new tensor, if it is known
    dtype: torch.dtype


class Updates:
    """Runs a program that may write some outputs into the memory of inputs.

    Parameters
    ----------
    manifest : Manifest
        The manifest of the program.
    updated : mapping of int to int
        Outputs that are new values of inputs -> these inputs, by position.

    Attributes
    ----------
    in_place : mapping of int to int
        Outputs that are written into the memory of an input -> that input.
    """

    def __init__(self, manifest: Manifest, updated: Mapping[int, int]) -> None:
        self._targets: list[_Target] = []
        for bound in manifest.bound_outputs:
            info = manifest.outputs[bound.number]
            is_update = bound.cache is not None and updated.get(bound.number) == bound.cache
            source, dtype = bound.cache if is_update else None, getattr(torch, info.dtype)
            self._targets.append(_Target(bound.number, source, info.static_shape, dtype))
        self.in_place = {
            each.number: each.source for each in self._targets if each.source is not None
        }

    def run(self, executable: Executable, given: Sequence[Any]) -> Sequence[Any]:
        """Runs the program and returns all outputs.

        Parameters
        ----------
        executable : Executable
            The program.
        given : sequence of torch.Tensor or tvm.runtime.Tensor
            Its inputs.
        """
        if not self.in_place:
            made = executable.main(*given)
            return [made] if len(executable.outputs) == 1 else made
        main, shapes = executable.main_into
        sizes: Any = None
        targets: list[Any] = []
        for place, (_, source, shape, dtype) in enumerate(self._targets):
            if source is not None:
                targets.append(given[source])
                continue
            if shape is None:
                sizes = sizes or shapes(*given)
                shape = tuple(sizes[place])
            targets.append(given_to(None, True, torch.empty(shape, dtype=dtype)))
        made = main(*given, *targets)
        found = [made] if len(executable.outputs) == 1 else list(made)
        for each, target in zip(self._targets, targets, strict=True):
            found[each.number] = target
        return found
