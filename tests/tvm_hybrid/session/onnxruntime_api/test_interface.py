"""ONNX Runtime's public names exist here, or the page lists them as missing with a reason."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import onnxruntime
import pytest

import tvm_hybrid
from tvm_hybrid.runtime.tensors import TensorInfo

PAGE = Path(__file__).resolve().parents[4] / "docs" / "onnxruntime.md"
CLASSES = (
    "InferenceSession",
    "SessionOptions",
    "RunOptions",
    "OrtValue",
    "IOBinding",
    "NodeArg",
    "ModelMetadata",
    "GraphOptimizationLevel",
    "ExecutionMode",
    "ExecutionOrder",
)


def absent() -> dict[str, str]:
    """Name -> reason, from the page's table."""
    _, _, text = PAGE.read_text().partition("## What is not here")
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", text, flags=re.M)
    return {name: why for names, why in rows for name in re.findall(r"`([\w.]+)`", names)}


def public(owner: object) -> list[str]:
    """Public names without submodules, which appear only after an import."""
    packages = {name for name in dir(owner) if inspect.ismodule(getattr(owner, name))}
    imported = packages & {"datasets", "quantization", "tools", "transformers"}
    return [name for name in dir(owner) if not name.startswith("_") and name not in imported]


def members() -> list[str]:
    """`Class.member` for all classes that exist here."""
    return [
        f"{name}.{member}"
        for name in CLASSES
        if hasattr(onnxruntime, name)  # older versions lack some
        for member in public(getattr(onnxruntime, name))
    ]


def is_here(name: str) -> bool:
    owner, _, member = name.rpartition(".")
    if not owner:
        return name in tvm_hybrid.__all__
    found = getattr(tvm_hybrid, owner)
    instances = {  # their attributes are made by __init__
        "NodeArg": lambda: tvm_hybrid.NodeArg(TensorInfo("x", (1,), "float32")),
        "SessionOptions": tvm_hybrid.SessionOptions,
        "RunOptions": tvm_hybrid.RunOptions,
        "ModelMetadata": tvm_hybrid.ModelMetadata,
        "GraphOptimizationLevel": lambda: tvm_hybrid.GraphOptimizationLevel.ORT_ENABLE_ALL,
        "ExecutionMode": lambda: tvm_hybrid.ExecutionMode.ORT_SEQUENTIAL,
        "ExecutionOrder": lambda: tvm_hybrid.ExecutionOrder.DEFAULT,
    }
    made = instances[owner]() if owner in instances else found
    return hasattr(made, member)


@pytest.mark.parametrize("name", [*public(onnxruntime), *members()])
def test_every_name_is_here_or_listed(name: str) -> None:
    assert is_here(name) != (name in absent())


def test_every_listed_name_has_a_reason() -> None:
    assert len(absent()) > 20
    assert all(len(why) > 10 for why in absent().values())


def test_enumerations_have_the_same_numbers() -> None:
    for name in ("GraphOptimizationLevel", "ExecutionMode"):
        ours, theirs = getattr(tvm_hybrid, name), getattr(onnxruntime, name)
        assert {each.name: each.value for each in ours} == {
            key: int(value) for key, value in theirs.__members__.items()
        }


def test_options_have_the_same_defaults() -> None:
    for kind in ("SessionOptions", "RunOptions"):
        ours, theirs = getattr(tvm_hybrid, kind)(), getattr(onnxruntime, kind)()
        for name in public(theirs):
            value = getattr(theirs, name)
            if not callable(value) and hasattr(ours, name):
                mine = getattr(ours, name)
                assert mine == (int(value) if hasattr(value, "name") else value), name
