"""Integer products: what a region's attributes say of types, zero points and further inputs.

`a_zero_point` and `b_zero_point` are numbers, or "input" for a further input (a scalar for A; one
int32 for each column of a constant B), or, for A, "range": a f32 input of two elements, scale and
zero point. Absent means 0. "dynamic" means that the kernel itself finds A's range first.
"""

from __future__ import annotations

from microkernels.base.integers import RANGES

from .region import Region


def is_integer(region: Region) -> bool:
    """Whether a product is one of 8-bit integers."""
    return region.inputs[1].dtype in RANGES


def zero_point_inputs(region: Region) -> list[str]:
    """What the inputs after A and B are, in order: "range", "a", "b"."""
    attrs = region.attrs
    found = []
    if "range" in (attrs.get("a_scale"), attrs.get("a_zero_point")):
        found.append("range")
    return found + [name for name in "ab" if attrs.get(f"{name}_zero_point") == "input"]


def reject_zero_points(region: Region) -> str | None:
    """Why the further inputs of an integer product make no sense, or None."""
    names = zero_point_inputs(region)
    if (region.attrs.get("a_zero_point") == "dynamic") != is_dynamic(region):
        return "a zero point that is found without its scale"
    if (names[:1] == ["range"] or is_dynamic(region)) and quantized_dtype(region) != "uint8":
        return "a range of int8 values"
    if len(region.inputs) != 2 + len(names):
        return f"{len(region.inputs)} inputs, where the zero points are {names}"
    for name, tensor in zip(names, region.inputs[2:], strict=True):
        if name == "range" and (tensor.shape, tensor.dtype) != ((2,), "float32"):
            return f"scale and zero point in {tensor}"
        if name == "a" and tensor.size != 1:
            return f"a zero point of A in {tensor}"
        if name == "b" and not (tensor.constant and tensor.shape == region.output.shape[-1:]):
            return f"zero points of B in {tensor}"
    return None


def quantized_dtype(region: Region) -> str:
    """The 8-bit type of A, as it is or as the kernel quantises it."""
    return str(region.attrs.get("a_quantize", region.inputs[0].dtype))


def is_dynamic(region: Region) -> bool:
    """Whether the kernel finds A's scale and zero point itself."""
    return region.attrs.get("a_scale") == "dynamic"
