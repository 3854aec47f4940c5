"""Tensors of torch for kernels and from them: the same memory wherever kernels can use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import runtime

from ..frontend.aten.memory_order import Order, inverse
from ..runtime.feeds import ALIGNMENT

Change = Callable[[Any], Any]


def giving(order: Order | None, anywhere: bool) -> Change:
    """How an argument becomes a tensor that kernels can read.

    Parameters
    ----------
    order : Order or None
        In which the program takes its axes.
    anywhere : bool
        Whether kernels read it wherever it lies.
    """

    def give(tensor: Any) -> Any:
        if order is not None:
            tensor = tensor.permute(order)
        if tensor.requires_grad:
            tensor = tensor.detach()
        if not tensor.numel():  # of which torch's strides are not those that kernels expect
            return runtime.empty(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if not tensor.is_contiguous():
            return tensor.clone(memory_format=torch.contiguous_format)
        if not anywhere and tensor.data_ptr() % ALIGNMENT:
            return tensor.clone()
        return tensor

    return give


def taking(order: Order | None, shared: bool) -> Change:
    """How a result becomes the caller's tensor.

    Parameters
    ----------
    order : Order or None
        In which the program gives its axes.
    shared : bool
        Whether it may share memory with an argument, a constant or another result.
    """
    back = None if order is None else inverse(order)

    def take(result: Any) -> Any:
        tensor = result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)
        if shared:
            tensor = tensor.clone()
        return tensor if back is None else tensor.permute(back)

    return take
