"""Widening: rewrites a block so that values of a narrow type are computed in f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, relax

from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, variables
from relay_passes.ir.moving_operators import moves
from relay_passes.ir.rewrite import Bindings, block_pass
from relay_passes.ir.traits import SCATTERS, SUMMING, is_convolution, is_transposed

NARROW, HALF, WIDE = "bfloat16", "float16", "float32"
_JOINS = ("relax.concat", "relax.split")
# Products read the results of norms as bfloat16, so all other readers use that, too.
_NORMS = ("relax.nn.layer_norm", "relax.nn.rms_norm")
_NOT_WIDENED = ("relax.call_", "relax.vm.", "relax.memory.", "relax.builtin.")


def arguments_of(value: relax.Expr) -> list[relax.Expr]:
    """Tensors and tuples that an expression reads."""
    if isinstance(value, relax.Call):
        return list(value.args)
    return list(variables(value))


def is_product(value: Any) -> bool:
    """Whether an expression is a matrix product or convolution that our kernels compute."""
    return op_name(value) == "relax.matmul" or (is_convolution(value) and not is_transposed(value))


def is_sum(value: Any) -> bool:
    """Whether an expression is any other operator that sums or multiplies terms."""
    name = op_name(value)
    if name == "relax.index_put":
        return bool(value.attrs.accumulate)
    if name in SCATTERS:  # other reductions replace elements
        return str(value.attrs.reduction) in ("add", "mul", "mean")
    return name in SUMMING and not moves(value)


@dataclass
class Widening:
    """A block under construction; a value of narrow type may exist as narrow, as f32, or as both.

    Attributes
    ----------
    products : str
        Type of the operands of matrix products.
    kind : str
        The narrow type.
    narrow, wide : dict
        Variable of the old block -> its value in the narrow type; its value in f32.
    sums : set
        f32 values that, once rounded, equal the result of one narrow operator: products of narrow
        operands, perhaps with a bias, and results of one operator on widened values; all perhaps
        moved.
    widened : set
        f32 variables that the model itself widens from narrow ones.
    fixed : set
        Variables that depend on constants only.
    activations : dict
        Variable that is a written-out activation -> its possible arguments.
    keeps : callable
        Product -> whether its operands stay narrow regardless of `products`.
    """

    products: str
    convolutions: str
    kind: str = NARROW
    block: Bindings = field(default_factory=Bindings)
    narrow: dict[relax.Expr, relax.Expr] = field(default_factory=dict)
    wide: dict[relax.Expr, relax.Expr] = field(default_factory=dict)
    sums: set[relax.Var] = field(default_factory=set)
    widened: set[relax.Var] = field(default_factory=set)
    fixed: set[relax.Expr] = field(default_factory=set)
    activations: Mapping[relax.Var, Sequence[relax.Expr]] = field(default_factory=dict)
    keeps: Callable[[relax.Call], bool] = lambda call: False

    def holds(self, expr: relax.Expr) -> bool:
        """Whether a value is a narrow tensor, or a tuple that contains one."""
        return self._is_narrow(expr.ty)

    def _is_narrow(self, ty: ir.Type) -> bool:
        if isinstance(ty, relax.TupleType):
            return any(map(self._is_narrow, ty.fields))
        return isinstance(ty, relax.TensorType) and str(ty.dtype) == self.kind

    def rewrite(self, var: relax.Var, value: Any) -> None:
        """Adds the replacement of an old binding."""
        name = op_name(value)
        arguments = arguments_of(value)
        if not (self.holds(var) or any(map(self.holds, arguments))):
            self.block.bindings.append(relax.VarBinding(var, value))
            self._note(var, value)
        elif isinstance(value, relax.Var):
            if value in self.wide and isinstance(var, relax.DataflowVar):
                self.wide[var] = self.wide[value]
            else:
                self._bind_narrow(var, self._narrow(value))
        elif isinstance(value, relax.TupleGetItem):
            whole = value.tuple_value
            if whole not in self.wide:
                self._bind_narrow(var, relax.TupleGetItem(self._narrow(whole), value.index))
            else:
                # Other items have other types, such as the indices of largest elements.
                bind = self._bind_wide if self.holds(var) else self.block.bind
                bind(var, relax.TupleGetItem(self.wide[whole], value.index))
        elif name == "relax.astype":
            self._cast(var, value)
        elif is_product(value):
            self._product(var, value)
        elif (moves(value) or name in _JOINS) and self.wide.keys().isdisjoint(variables(value)):
            self._keep(var, value)  # nothing would have to be rounded first
        elif name and not name.startswith(_NOT_WIDENED) and any(map(self.holds, arguments)):
            self._compute(var, value)
        else:
            self._keep(var, value)

    def _cast(self, var: relax.Var, call: relax.Call) -> None:
        source = call.args[0]
        if self.holds(var) and source in self.sums:  # importers write narrow operators like this
            self.wide[var] = source
            if not isinstance(var, relax.DataflowVar):
                self._bind_narrow(var, self._rounded(source, var.ty))
        elif not self.holds(source):  # a rounding that the model asks for
            self._bind_narrow(var, call)
        elif self.holds(var):
            self._bind_narrow(var, self._narrow(source))
        elif str(var.ty.dtype) == WIDE:
            self.block.bind(var, self._wide(source))
            self.widened.add(var)
        else:
            self.block.bind(var, relax.op.astype(self._wide(source), str(var.ty.dtype)))

    def _note(self, var: relax.Var, value: Any) -> None:
        """Notes how an f32 value depends on values that the model widens."""
        if isinstance(value, relax.TupleGetItem):
            if value.tuple_value in self.sums:
                self.sums.add(var)
        elif isinstance(value, relax.Call) and not op_name(value).startswith(_NOT_WIDENED):
            if not self._given(value):
                self.fixed.add(var)
            elif moves(value) and value.args[0] in self.widened:
                self.widened.add(var)
            elif self._is_rounded_alike(var, value):
                self.sums.add(var)

    def _is_rounded_alike(self, var: relax.Var, value: relax.Call) -> bool:
        """Whether an f32 value, once rounded, equals the result of one narrow operator."""
        if moves(value) and value.args[0] in self.sums:
            return True
        if not self.widened.isdisjoint(self.activations.get(var, ())):
            return True
        if op_name(value) == "relax.add":  # a product of narrow operands with a bias
            for one, other in (value.args, reversed(value.args)):
                constant = isinstance(other, ir.GenericConst)
                if one in self.sums and (constant or other in self.widened):
                    return True
        # One operator on widened values: importers write narrow operators like this.
        if op_name(value) in ("relax.astype", *(_NORMS if self.kind == NARROW else ())):
            return False
        given = self._given(value)
        return bool(given) and self.widened.issuperset(given)

    def _given(self, value: relax.Call) -> list[relax.Expr]:
        """The tensors and tuples that an operator reads, without those in `fixed`."""
        kinds = (relax.TensorType, relax.TupleType)
        return [
            arg
            for arg in value.args
            if isinstance(arg.ty, kinds)
            and not isinstance(arg, ir.GenericConst)
            and arg not in self.fixed
        ]

    def _product(self, var: relax.Var, call: relax.Call) -> None:
        operands = self.convolutions if is_convolution(call) else self.products
        narrow = operands == self.kind or self.keeps(call)
        form = self._narrow if narrow else self._wide
        a, b = map(form, call.args)
        if is_convolution(call):
            product: relax.Expr = with_args(call, [a, b], out_dtype=WIDE)
        else:
            product = relax.op.matmul(a, b, out_dtype=WIDE)
        if self.holds(var):
            self._bind_wide(var, product)
        elif str(var.ty.dtype) == WIDE:
            self.block.bind(var, product)
            self.sums.add(var)
        else:
            self._keep(var, call)

    def _compute(self, var: relax.Var, call: relax.Call) -> None:
        """Computes an operator in f32; keeps the binding if its result would not be f32."""
        arguments = [self._wide(arg) if self.holds(arg) else arg for arg in call.args]
        # The attributes that name the type in which a call sums, if it is the narrow type.
        names = ("dtype", "out_dtype") if is_sum(call) else ()
        narrow = [name for name in names if str(getattr(call.attrs, name, "")) == self.kind]
        changed: dict[str, Any] = dict.fromkeys(narrow, WIDE)
        applied = self.block.builder.normalize(with_args(call, arguments, **changed))
        if not self.holds(var):
            if tvm_ffi.structural_equal(applied.ty, var.ty):
                self.block.bind(var, applied)
            else:
                self._keep(var, call)
        elif self.holds(applied):
            self._keep(var, call)
        elif self.kind == NARROW and op_name(call) in _NORMS:
            wide = self.block.emit(applied, str(var.name))
            self._bind_narrow(var, self._rounded(wide, var.ty))
        else:
            self._bind_wide(var, applied)

    def _keep(self, var: relax.Var, value: relax.Expr) -> None:
        """Keeps a binding, on narrow values."""
        if isinstance(value, relax.Call):
            arguments = [self._narrow(arg) if self.holds(arg) else arg for arg in value.args]
            value = with_args(value, arguments)
        elif isinstance(value, relax.Tuple):
            value = self._narrow(value)
        if self.holds(var):
            self._bind_narrow(var, value)
        else:
            self.block.bind(var, value)

    def _bind_narrow(self, var: relax.Var, value: relax.Expr) -> None:
        self.block.bind(var, value)
        self.narrow[var] = var

    def _bind_wide(self, var: relax.Var, value: relax.Expr) -> None:
        self.wide[var] = self.block.emit(value, str(var.name))
        if not isinstance(var, relax.DataflowVar):  # needed outside, in its own type
            self._bind_narrow(var, self._rounded(self.wide[var], var.ty))

    def _narrow(self, expr: relax.Expr) -> relax.Expr:
        """A value in its old type."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._narrow(each) for each in expr.fields])
        if not isinstance(expr, relax.Var) or expr not in self.wide:
            return expr
        if expr not in self.narrow:
            rounded = self._rounded(self.wide[expr], expr.ty)
            self.narrow[expr] = self.block.emit(rounded, str(expr.name))
        return self.narrow[expr]

    def _rounded(self, wide: relax.Expr, ty: ir.Type) -> relax.Expr:
        """A f32 tensor rounded; for a tuple, each item whose type is narrow."""
        if not isinstance(ty, relax.TupleType):
            return relax.op.astype(wide, self.kind)
        items = [self.block.emit(relax.TupleGetItem(wide, i)) for i in range(len(ty.fields))]
        return relax.Tuple(
            [
                self.block.emit(self._rounded(item, each)) if self._is_narrow(each) else item
                for item, each in zip(items, ty.fields, strict=True)
            ]
        )

    def _wide(self, expr: relax.Expr) -> relax.Expr:
        """A narrow value as f32."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple(
                [self._wide(each) if self.holds(each) else each for each in expr.fields]
            )
        if isinstance(expr, ir.GenericConst):
            return relax.const(expr.value.numpy().astype(np.float32))
        if expr not in self.wide:
            self.wide[expr] = self.block.emit(relax.op.astype(expr, WIDE), str(expr.name))
        return self.wide[expr]


# Widen: a bfloat16 model computes in f32 between products and convolutions, and rounds once.
#
# Before
#
#     lv = R.matmul(x, const_w)                       # all bfloat16
#     lv1 = R.add(lv, const_b)
#     lv2 = R.nn.gelu(lv1)
#     gv = R.matmul(lv2, const_v)
#
# After
#
#     lv = R.matmul(x, const_w, out_dtype="float32")  # the operands are bfloat16
#     lv1 = R.add(lv, const_b')                       # float32, as everything to the next cast
#     lv2 = R.nn.gelu(lv1)
#     lv3 = R.astype(lv2, "bfloat16")
#     lv4 = R.matmul(lv3, const_v, out_dtype="float32")
#     gv = R.astype(lv4, "bfloat16")
#
# A bfloat16 model means a rounding after every operator. Here, values between two operators stay
# f32, which is at least as precise (oneDNN and OpenVINO do that, too). Results of norms are
# rounded, as products read them. Casts that the model itself contains do round, except those around
# a single operator that is no norm: importers write bfloat16 operators like that. With
# `products="float32"` the operands of products are f32 too, with `convolutions="float32"` those of
# convolutions. Operators that only move elements move bfloat16 if the value is stored in it.
#
# `widen_f16` widens float16 models with products or sums: reductions, pools, norms, softmax.
# Operands of products become f32, except where AMX tiles multiply float16 and are faster
# (`half_products`). In float16 models, casts around a norm or around a written-out activation do
# not round either. So no sum overflows that is divided later, like the sum of a mean:
#
#     lv = R.multiply(x, x)               # all float16; 300 * 300 is inf
#     gv = R.sqrt(R.mean(lv))
#         ->  lv = R.astype(x, "float32")
#             gv = R.astype(R.sqrt(R.mean(R.multiply(lv, lv))), "float16")


KeepsHalf = Callable[[DataflowGraph, relax.Call], bool]
FindActivations = Callable[[DataflowGraph], Mapping[relax.Var, Sequence[relax.Expr]]]


def widen_bf16(products: str = NARROW, convolutions: str = NARROW) -> ir.transform.Pass:
    """The pass; it needs A-normal form, and does not change modules without bfloat16.

    Parameters
    ----------
    products, convolutions : str
        Type of the operands of matrix products and of convolutions: "bfloat16" or "float32".
    """
    return block_pass(
        "tvm_hybrid.widen_bf16", lambda graph: _rewrite(graph, Widening(products, convolutions))
    )


def widen_f16(
    activations: FindActivations = lambda _: {}, keeps: KeepsHalf = lambda graph, call: False
) -> ir.transform.Pass:
    """The pass for float16; it does not change blocks without float16 products or sums.

    Parameters
    ----------
    activations : callable
        A block -> each variable that is a written-out activation, and its possible arguments.
    keeps : callable
        (block, product) -> whether its operands stay float16.
    """

    def rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
        widening = Widening(WIDE, WIDE, HALF, keeps=lambda call: keeps(graph, call))

        def comes_from_half(arg: relax.Expr) -> bool:
            cast = graph.definition(arg)
            return widening.holds(cast.args[0] if is_call(cast, "relax.astype") else arg)

        values = (each.value for each in graph.bindings)
        summing = (value for value in values if is_product(value) or is_sum(value))
        if not any(comes_from_half(arg) for value in summing for arg in value.args):
            return None
        widening.activations = activations(graph)
        return _rewrite(graph, widening)

    return block_pass("tvm_hybrid.widen_f16", rewrite)


def _rewrite(graph: DataflowGraph, widening: Widening) -> list[relax.Binding] | None:
    """The new bindings; None if nothing is narrow, or if a binding is a match cast."""
    plain = all(isinstance(binding, relax.VarBinding) for binding in graph.bindings)
    touched = any(
        widening.holds(expr)
        for binding in graph.bindings
        for expr in (binding.var, *arguments_of(binding.value))
    )
    if not (plain and touched):
        return None
    for binding in graph.bindings:
        widening.rewrite(binding.var, binding.value)
    return widening.block.bindings
