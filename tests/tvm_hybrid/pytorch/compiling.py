"""Compiles functions and modules by the backend, and records the compiled programs."""

from __future__ import annotations

from typing import Any

import pytest

import tvm_hybrid
from tvm_hybrid.pytorch.programs import TorchProgram

torch = pytest.importorskip("torch")
_older: list[TorchProgram] = []


def compiled(
    model: Any, dynamic: bool | None = False, fullgraph: bool = False, **options: Any
) -> Any:
    """Compiles a model with `torch.compile` on one thread; an eager fallback is an error."""
    from tvm_hybrid.pytorch.backend import tvm_hybrid as backend

    torch._dynamo.reset()
    _older[:] = tvm_hybrid.torch_programs()
    chosen = {"num_threads": 1, "strict": True, **options}
    how = {"dynamic": dynamic, "fullgraph": fullgraph}
    return torch.compile(model, backend=backend, options=chosen, **how)


def programs() -> list[TorchProgram]:
    """Graphs compiled since the last call of `compiled`."""
    return [each for each in tvm_hybrid.torch_programs() if each not in _older]


def only_program() -> TorchProgram:
    """The only program."""
    (program,) = programs()
    return program


def check(model: Any, *inputs: Any, tolerance: float = 2e-5, **options: Any) -> TorchProgram:
    """Compares results with eager mode in values, types, shapes and strides."""
    with torch.no_grad():
        wanted, found = model(*inputs), compiled(model, **options)(*inputs)
    wanted, found = (each if isinstance(each, tuple) else (each,) for each in (wanted, found))
    for one, other in zip(found, wanted, strict=True):
        # Sums of a few hundred products of about one, in float32.
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance, check_stride=True)
    return only_program()
