"""Tiny Relax models, and a way to run Python in a fresh process, for this folder's tests."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from tvm import IRModule, relax

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.executable.executable import Executable

ROOT = Path(__file__).resolve().parents[2]

MLP_WEIGHT = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
MLP_BIAS = np.random.default_rng(1).standard_normal(16).astype(np.float32)


def mlp_module(rows: int = 1) -> IRModule:
    """x[rows, 16] -> relu(x @ MLP_WEIGHT + MLP_BIAS)."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(MLP_WEIGHT)))
            y = builder.emit(relax.op.add(y, relax.const(MLP_BIAS)))
            y = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(y)
    return builder.get()


def mlp_reference(x: np.ndarray) -> np.ndarray:
    """The MLP's result in float64."""
    return np.maximum(x.astype(np.float64) @ MLP_WEIGHT + MLP_BIAS, 0)


def saved_chain(path: Path, weights: Iterable[np.ndarray]) -> Path:
    """An ONNX file that multiplies x[1, N] by a chain of [N, N] matrices."""
    build = OnnxBuilder()
    size, value = 0, "x"
    for weight in weights:
        size, _ = weight.shape
        value = build.node("MatMul", value, build.constant(weight, np.float32))
    build.input("x", [1, size])
    build.output(value, [1, size])
    onnx.save_model(build.model(), path)
    return path


def several_module() -> IRModule:
    """(x: float32[2, 3], n: int64[4]) -> (x + 1, n * 2, flat view of x, x itself)."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    n = relax.Var("n", relax.TensorType((4,), "int64"))
    with builder.function("main", [x, n]):
        with builder.dataflow():
            more = builder.emit(relax.op.add(x, relax.const(1.0, "float32")))
            twice = builder.emit(relax.op.multiply(n, relax.const(2, "int64")))
            flat = builder.emit(relax.op.reshape(x, (6,)))
            result = builder.emit_output(relax.Tuple([more, twice, flat, x]))
        builder.emit_func_output(result)
    return builder.get()


@functools.cache
def mlp(threads: int = 1) -> Executable:
    """The MLP, compiled for this machine."""
    return tvm_hybrid.compile(mlp_module(), num_threads=threads)


@functools.cache
def several() -> Executable:
    """The model with several inputs and outputs, compiled for this machine."""
    return tvm_hybrid.compile(several_module(), num_threads=1)


def operators(executable: Executable) -> list[str]:
    """Operators of each region, and of each generic kernel that is no reorder."""
    return [each.op for each in executable.explain() if each.op != "reorder"]


def run_python(
    code: str, *arguments: object, path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that finds this repository, after `path`."""
    places = [str(place) for place in (path, ROOT) if place is not None]
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,  # importing TVM takes seconds, on a busy machine many
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), **environment},
        check=False,
    )
