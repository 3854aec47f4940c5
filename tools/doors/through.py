"""Compiles a torch model through each door."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tvm_hybrid
from tvm_hybrid.executable.executable import Executable

from .nn_models import nn_module
from .torch_models import TorchModel

# The first opset with convolutions of bfloat16.
OPSET = 22


def through_torch(name: str, model: TorchModel, threads: int) -> Executable:
    """Compiles through torch.export."""
    return tvm_hybrid.compile(model.module, example_inputs=model.inputs, num_threads=threads)


def through_onnx(name: str, model: TorchModel, threads: int) -> Executable:
    """Compiles through torch.onnx.export."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with _silent(), torch.no_grad():
            torch.onnx.export(
                model.module,
                model.inputs,
                path,
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                optimize=_may_be_optimized(model),
            )
        return tvm_hybrid.compile(path, num_threads=threads)


def through_nn(name: str, model: TorchModel, threads: int) -> Executable | None:
    """Compiles through tvm.relax.frontend.nn with the model's weights; None if it has no module."""
    mod = nn_module(name, model)
    return None if mod is None else tvm_hybrid.compile(mod, num_threads=threads)


Through = Callable[[str, TorchModel, int], Executable | None]
DOORS: dict[str, Through] = {"torch": through_torch, "ONNX": through_onnx, "nn": through_nn}


def as_array(x: Any) -> np.ndarray:
    """A tensor as an array with the tensor's type."""
    import ml_dtypes

    x = x.detach().contiguous()
    if x.dtype != torch.bfloat16:
        return np.asarray(x.numpy())
    return np.asarray(x.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)


def _may_be_optimized(model: TorchModel) -> bool:
    """False for narrow types with convolutions or batch norms: folding gives weights of float32."""
    kinds = (torch.nn.Conv2d, torch.nn.BatchNorm2d)
    return model.dtype == torch.float32 or not any(
        isinstance(each, kinds) for each in model.module.modules()
    )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silences the exporter's warnings and output."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
