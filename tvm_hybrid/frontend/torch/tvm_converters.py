"""Operators of torch programs in bfloat16 and float16 that sum: in float32, and rounded once.

    mm(a: bfloat16, b: bfloat16)
        ->  R.astype(R.matmul(a, b, out_dtype="float32"), "bfloat16")
    convolution(x: float16, w: float16, b: float16)
        ->  R.astype(R.nn.conv2d(R.astype(x, "float32"), ...), "float16")

TVM's converters make results of float32 whatever the operands are, and then refuse to add a bias.
PyTorch accumulates in float32, too. Operands of products in bfloat16 stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tvm import relax

from ..expressions import emit

Converter = Callable[[Any, Any], Any]  # (node, TVM's importer) -> value

_NARROW = ("bfloat16", "float16")
# Which operands are widened where they are bfloat16.
_PRODUCTS: dict[str, tuple[int, ...]] = {
    "mm.default": (),
    "bmm.default": (),
    "addmm.default": (0,),
}
_WIDENED = (
    "convolution.default",
    "_native_batch_norm_legit_no_training.default",
    *("native_layer_norm.default", "native_group_norm.default"),
    *("_softmax.default", "_log_softmax.default"),
    *("mean.dim", "mean.default", "sum.dim_IntList"),
    *("gelu.default", "erf.default", "silu.default"),
    *("avg_pool2d.default", "avg_pool3d.default", "_adaptive_avg_pool2d.default"),
)


def torch_converters(own: Mapping[str, Converter]) -> dict[str, Converter]:
    """Converters for TVM's importer of torch programs, in place of its own of these names.

    Parameters
    ----------
    own : mapping of str to callable
        Converters that are used where they are, instead of TVM's.
    """
    return {name: _converter(name, own.get(name)) for name in (*_PRODUCTS, *_WIDENED)}


def _converter(name: str, own: Converter | None) -> Converter:
    """A converter with operands in float32 and a rounded result where they are narrow."""

    def convert(node: Any, importer: Any) -> Any:
        def plain(node: Any) -> Any:
            return importer.create_convert_map()[name](node) if own is None else own(node, importer)

        narrow = {
            each: dtype
            for each in node.all_input_nodes
            if (dtype := _dtype(importer.env.get(each))) in _NARROW
        }
        if not narrow:
            return plain(node)
        before = {each: importer.env[each] for each in narrow}
        for each in _to_widen(name, node, narrow):
            importer.env[each] = emit(relax.op.astype(before[each], "float32"))
        try:
            result = plain(node)
        finally:
            importer.env.update(before)
        return _rounded(result, next(iter(narrow.values())))

    return convert


def _to_widen(name: str, node: Any, narrow: dict[Any, str]) -> Iterable[Any]:
    """The operands that are to be float32."""
    if name not in _PRODUCTS or "float16" in narrow.values():
        return list(narrow)
    return [node.args[number] for number in _PRODUCTS[name] if node.args[number] in narrow]


def _rounded(value: Any, dtype: str) -> Any:
    """A value, or the first of several, in a narrow type; statistics beside it stay as they are."""
    if isinstance(value.ty, relax.TupleType):
        items = [relax.TupleGetItem(value, number) for number in range(len(value.ty.fields))]
        first = _rounded(emit(items[0]), dtype)
        return emit(relax.Tuple([first, *map(emit, items[1:])]))
    return emit(relax.op.astype(value, dtype)) if _dtype(value) == "float32" else value


def _dtype(value: Any) -> str:
    """The type of a tensor's elements; "" of anything else."""
    return str(getattr(getattr(value, "ty", None), "dtype", ""))
