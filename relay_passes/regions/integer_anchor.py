"""Anchors, from which regions grow, and the tensors that integer and bfloat16 products really read.

    lv = R.subtract(R.astype(q, "int32"), z)        # zero point; or R.astype alone
    lv1 = R.matmul(lv, R.astype(const_w, "int32"), out_dtype="int32")

The kernel reads q, z and const_w. Without zero points, R.matmul(q, const_w, out_dtype="int32") has
this meaning, too. If nothing else needs q = R.quantize(x, ...), the kernel reads x and quantises it
itself. Likewise, it reads an f32 tensor that is rounded to bfloat16 only for this product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import ir, relax

from microkernels.base.arrays import RANGES
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product.narrow_weight import per_block_shape

from ..ir.constants import array_of
from ..ir.dynamic_quantize import match_dynamic_quantize
from ..ir.graph import DataflowGraph, is_call, region_tensor, scalar_constant, static_tensor
from .fusible_calls import is_fusible


@dataclass(frozen=True)
class Anchor:
    """A call that a template can build.

    Attributes
    ----------
    position : int
        Position of the call's binding in the block.
    op : str
        The template's name.
    inputs : tuple of relax.Expr
        The tensors that the kernel reads, in the template's order.
    attrs : dict
        Attributes of the region.
    output : Tensor or None
        The anchor's result; None if its shape is unknown.
    absorbed : tuple of int
        Positions of bindings between `inputs` and the call.
    otherwise : str
        The template to try if the first one rejects the call; "" if there is none.
    dynamic_weight : int or None
        Number of the input that is packed like a constant although it is dynamic.
    """

    position: int
    op: str
    inputs: tuple[relax.Expr, ...]
    output: Tensor | None
    attrs: dict[str, Attribute] = field(default_factory=dict)
    absorbed: tuple[int, ...] = ()
    otherwise: str = ""
    dynamic_weight: int | None = None

    def region(self) -> Region | None:
        """The region without an epilogue; None if a shape is unknown."""
        tensors = [region_tensor(expr) for expr in self.inputs]
        if self.output is None or any(tensor is None for tensor in tensors):
            return None
        inputs = tuple(
            Tensor(tensor.shape, tensor.dtype, tensor.constant or number == self.dynamic_weight)
            for number, tensor in enumerate(tensors)
            if tensor is not None
        )
        return Region(op=self.op, inputs=inputs, output=self.output, attrs=self.attrs)


Matcher = Callable[[DataflowGraph, int, relax.Call], "Anchor | str | None"]
"""(block, position, call) -> its anchor. A str says why a call that could be an anchor is not one;
None means an ordinary operator."""


@dataclass
class Operand:
    """One factor of a product.

    Attributes
    ----------
    source : relax.Expr
        The tensor that the kernel reads.
    attrs : dict
        Attributes of the region, named as in tir_schedules.product.zero_points.
    inputs : dict
        Further inputs: "range", "a", "b" or "scale" -> expression.
    absorbed : list of int
        Positions of the bindings between `source` and the product.
    """

    source: relax.Expr
    attrs: dict[str, Attribute] = field(default_factory=dict)
    inputs: dict[str, relax.Expr] = field(default_factory=dict)
    absorbed: list[int] = field(default_factory=list)

    def passes(self, graph: DataflowGraph, name: str, operand: int = 0) -> relax.Call | None:
        """The call of operator `name` that computes the source, else None; from then on the kernel
        reads one of its operands."""
        call = graph.definition(self.source)
        if not is_call(call, name):
            return None
        self.absorbed.append(graph.position[self.source])
        self.source = call.args[operand]
        return call


def integer_operand(graph: DataflowGraph, name: str, expr: relax.Expr) -> Operand | None:
    """The 8-bit tensor that an operand is, or is cast from; None if there is none.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    name : str
        "a" or "b".
    expr : relax.Expr
        The operand of the product.
    """
    found = Operand(expr)
    if str(expr.ty.dtype) in RANGES:
        return found
    call = found.passes(graph, "relax.subtract")
    if call is not None:
        zero_point = _zero_point(graph, name, found, call.args[1])
        if zero_point is None:
            return None
        found.attrs[f"{name}_zero_point"] = zero_point
    cast = found.passes(graph, "relax.astype")
    return found if cast is not None and str(found.source.ty.dtype) in RANGES else None


def quantized_on_the_way(graph: DataflowGraph, found: Operand) -> None:
    """Lets the kernel quantise A if only this product reads the 8-bit tensor."""
    call = graph.definition(found.source)
    if not is_call(call, "relax.quantize") or not feeds_this_alone(graph, found.source):
        return
    x, scale, zero_point = call.args
    if str(x.ty.dtype) != "float32" or region_tensor(x) is None:
        return
    attrs: dict[str, Attribute] = {"a_quantize": str(found.source.ty.dtype)}
    number, source = scalar_constant(scale), found.inputs.get("range")
    items = [graph.item_of_range(expr) for expr in (scale, zero_point)]
    if found.attrs.get("a_zero_point") == "dynamic":
        chain = match_dynamic_quantize(graph, graph.position[found.source])
        if chain is None:
            return  # the scale comes from the range of another tensor
        attrs["a_scale"] = "dynamic"
        attrs |= chain.attributes
        found.absorbed += graph.range_chain(scale)
    elif source is not None and all(
        # Scale and zero point are items of the range that the product's zero point comes from.
        item is not None and item[1] == index and item[0].same_as(source)
        for index, item in enumerate(items)
    ):
        attrs["a_scale"] = "range"
        found.absorbed += graph.range_chain(scale)
    elif number is not None and scalar_constant(zero_point) == found.attrs.get("a_zero_point", 0):
        if _computed_from_bytes(graph, x, graph.position[found.source]):
            return  # a kernel reads and writes it as 8 bits; f32 takes four times the bytes
        attrs["a_scale"] = number
    else:
        return
    # Only a normal, positive scale; any other keeps the operator's own kernel.
    if number is not None and not 2.0**-100 < number < 2.0**100:
        return
    found.passes(graph, "relax.quantize")
    found.attrs.update(attrs)


def _computed_from_bytes(graph: DataflowGraph, x: relax.Expr, user: int) -> bool:
    """Whether elementwise operators outside any region make x from 8-bit tensors of its shape."""
    call = graph.definition(x)
    # Other users may need x in memory anyway.
    if call is None or graph.position[x] in graph.taken or graph.only_user(x) != user:
        return False
    if is_call(call, "relax.dequantize"):
        return True
    if not is_fusible(call) or not isinstance(call, relax.Call):
        return False
    shape, position = region_tensor(x), graph.position[x]
    return any(
        _computed_from_bytes(graph, arg, position)
        for arg in call.args
        if isinstance(arg, relax.Var) and region_tensor(arg) == shape
    )


def rounded_on_the_way(graph: DataflowGraph, found: Operand) -> None:
    """Lets the kernel round an operand to 16 bits if only this product reads the rounded tensor."""
    call = graph.definition(found.source)
    wide = is_call(call, "relax.astype") and str(call.args[0].ty.dtype) == "float32"
    if wide and feeds_this_alone(graph, found.source):
        found.passes(graph, "relax.astype")


def feeds_one_product(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether an 8-bit tensor is read only by one product with a constant weight."""
    if not feeds_this_alone(graph, expr):
        return False
    user = graph.users[expr][0]
    while is_call(graph.value(user), "relax.astype", "relax.subtract"):
        expr = graph.bindings[user].var
        user = graph.users[expr][0]
    call = graph.value(user)
    if not is_call(call, "relax.matmul") or not call.args[0].same_as(expr):
        return False
    weight = integer_operand(graph, "b", call.args[1])
    tensor = None if weight is None else region_tensor(weight.source)
    return tensor is not None and tensor.constant and len(tensor.shape) == 2


def feeds_this_alone(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value has one user, is not part of another region, and is no output.

    Casts, subtractions and permutations that use it must have one user too, down to the product.
    Without fusion it is False: the operands of a product are read from memory as they are.
    """
    if not graph.fuse or graph.position[expr] in graph.taken:
        return False
    while (user := graph.only_user(expr)) is not None:
        call = graph.value(user)
        if not is_call(call, "relax.astype", "relax.subtract", "relax.permute_dims"):
            return True
        expr = graph.bindings[user].var
    return False


def _zero_point(
    graph: DataflowGraph, name: str, found: Operand, expr: relax.Expr
) -> int | str | None:
    """The attribute for a zero point, whose tensors are added to `found`; None if no kernel
    supports it."""
    number = scalar_constant(expr)
    if number is not None:
        return int(number)
    tensor = region_tensor(expr)
    if tensor is None:
        return None
    if isinstance(expr, ir.GenericConst):
        if name != "b" or tensor.size != tensor.shape[-1]:
            return None
        vector = np.ascontiguousarray(expr.value.numpy().reshape(-1).astype(np.int32))
        values = set(vector.tolist())
        if len(values) == 1:
            return int(values.pop())
        found.inputs["b"] = relax.const(tvm.runtime.tensor(vector))
        return "input"
    call = graph.definition(expr)
    if name != "a" or tensor.size != 1 or not is_call(call, "relax.astype"):
        return None
    item = graph.item_of_range(call.args[0])
    found.absorbed.append(graph.position[expr])
    if item is not None and item[1] == 1 and item[0] in graph.range_items:
        return "dynamic"
    if item is not None and item[1] == 1:
        found.inputs["range"] = item[0]
        found.absorbed += [*graph.range_chain(call.args[0])][::-1]
        return "range"
    found.inputs["a"] = call.args[0]
    return "input" if str(call.args[0].ty.dtype) in RANGES else None


# Recognises products with a weight of 8 bits or fewer, for weight_only_matmul.
#
#     lv = R.astype(const_w, "float32")                   # int8 or uint8 [B, K / B, N]
#     lv1 = R.subtract(lv, const_z)                       # f32, from [B, 1, N]; may be missing
#     lv2 = R.multiply(lv1, const_s)                      # f32, from [B, 1, N]
#     lv3 = R.reshape(lv2, [K, N])
#     lv4 = R.matmul(x, lv3)
#
# The constant may be reshaped, too; without any reshape there is one block. A strided_slice after
# the last reshape drops the padding of a short last block. The values of the constant determine the
# number of bits, those of the scales whether float16 holds them all. A type argument of the matmul,
# int8, permits to quantise x to int8.


def _passes_constant(graph: DataflowGraph, found: Operand, name: str) -> relax.Expr | None:
    """The constant operand of an operator of two arguments, which is passed; None if the value is
    computed in another way."""
    call = graph.definition(found.source)
    if not is_call(call, name):
        return None
    first = name == "relax.multiply" and isinstance(call.args[0], ir.GenericConst)
    constant = call.args[0 if first else 1]
    if not isinstance(constant, ir.GenericConst):
        return None
    found.passes(graph, name, int(first))
    return constant


def match_weight_only(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | None:
    """The anchor of a matmul whose weight is a dequantised constant, else None.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    position : int
        Where the matmul's binding stands.
    call : relax.Call
        The matmul.
    """
    a, output = region_tensor(call.args[0]), region_tensor(call)
    chain = Operand(call.args[1])
    if a is None or len(a.shape) < 2 or a.dtype != "float32":
        return None
    weight = static_tensor(call.args[1])
    if weight is None or len(weight.shape) != 2 or not _cuts_rows(graph, chain):
        return None
    reshaped = chain.passes(graph, "relax.reshape") is not None
    blocks = static_tensor(chain.source)
    scale = _passes_constant(graph, chain, "relax.multiply")
    zero = _passes_constant(graph, chain, "relax.subtract")
    if scale is None or blocks is None or len(blocks.shape) != (3 if reshaped else 2):
        return None
    if chain.passes(graph, "relax.astype") is None:
        return None
    chain.passes(graph, "relax.reshape")
    stored = static_tensor(chain.source)
    if stored is None or not stored.constant or stored.dtype not in ("int8", "uint8"):
        return None
    shape = blocks.shape if reshaped else (1, *blocks.shape)
    same_columns = stored.shape[-1:] == shape[-1:] == weight.shape[-1:]
    parameters = [scale] if zero is None else [scale, zero]
    if not same_columns or not all(_per_block(each, shape, reshaped) for each in parameters):
        return None
    bits = _bits(array_of(chain.source.value), shape)
    attrs: dict[str, Attribute] = {"block": shape[1], "bits": bits}
    common = None if zero is None else _common(zero)
    if common is not None:
        attrs["zero_point"] = common
        parameters = [scale]
    attrs |= {"scales": "float16"} if bits < 8 and _is_float16(scale) else {}
    if graph.rounds:
        attrs["rounded"] = "bfloat16"
    if len(call.ty_args):
        attrs["quantized"] = "int8"
    inputs = (call.args[0], chain.source, *parameters)
    absorbed = tuple(sorted(chain.absorbed))
    return Anchor(position, "weight_only_matmul", inputs, output, attrs, absorbed)


def _cuts_rows(graph: DataflowGraph, chain: Operand) -> bool:
    """Passes a slice of the first rows, if there is one; False for any other slice."""
    shape = static_tensor(chain.source)
    call = chain.passes(graph, "relax.strided_slice")
    if call is None:
        return True
    whole = static_tensor(chain.source)
    axes, begin, end, *strides = ([int(x.value) for x in arg.fields] for arg in call.args[1:])
    unit = not strides or strides[0] == [1]
    return (
        whole is not None
        and shape is not None
        and (axes, begin, unit) == ([0], [0], True)
        and 0 < end[0] <= whole.shape[0]
    )


def _per_block(constant: relax.Expr, shape: tuple[int, ...], reshaped: bool) -> bool:
    """Whether a constant of shape [B, b, N] holds one number per block, per column, or both."""
    tensor = static_tensor(constant)
    rank = 3 if reshaped else 2
    if tensor is None or tensor.dtype != "float32" or len(tensor.shape) > rank:
        return False
    blocks, steps, columns = (1,) * (3 - len(tensor.shape)) + tensor.shape
    # The kernel reads it as [B, N]: with fewer than three dimensions, only columns may differ.
    as_read = per_block_shape(tensor.shape)
    return (
        steps == 1
        and blocks in (1, shape[0])
        and columns in (1, shape[2])
        and as_read == (blocks, columns)
    )


def _bits(weight: np.ndarray, shape: tuple[int, ...]) -> int:
    """The fewest bits that hold every number and divide each block into whole words."""
    low, high = int(weight.min()), int(weight.max())
    for bits in (2, 4):
        signed = weight.dtype == np.int8
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if least <= low and high <= most and (shape[0] == 1 or shape[1] % (32 // bits) == 0):
            return bits
    return 8


def _is_float16(scale: relax.Expr) -> bool:
    """Whether scales of blocks are all numbers of type float16."""
    array = array_of(scale.value)
    with np.errstate(over="ignore"):
        return np.array_equal(array, array.astype(np.float16))


def _common(zero: relax.Expr) -> float | None:
    """The zero point, if it is one finite number for all elements; else None."""
    array = zero.value.numpy()
    first = float(array.flat[0])
    return first if math.isfinite(first) and (array == array.flat[0]).all() else None
