"""The programs that TVM's own pipelines make of a model, and whose product each of them is.

Our passes rewrite a model before they form regions (an erf among four operators becomes a gelu), so
the program of a region need not be one that TVM's pipeline makes of the same model. The product in
it is the same nevertheless, and so is the best way to compute it: a record serves every program
with its product, whatever comes after it.
"""

from __future__ import annotations

import math
import os
from typing import Any, TypeAlias

from tvm import IRModule, ir, relax, tirx

from microkernels.base.errors import ConfigError, ModelError
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region

from ...frontend.model_bytes import is_onnx
from ...frontend.model_input import import_model
from .recognize import region_of
from .workload import legalized, normalized

ProductKey: TypeAlias = "tuple[str, tuple[Any, ...], tuple[tuple[str, Attribute], ...]]"


def product_key(region: Region) -> ProductKey:
    """Equal for regions with the same product or convolution, whatever their epilogues.

    Leading dimensions of a matmul's rows count as one.
    """
    shapes = [tensor.shape for tensor in region.inputs]
    if region.op == "matmul" and "window" not in region.attrs:
        shapes[0] = (math.prod(shapes[0][:-1]), shapes[0][-1])
    dtypes = [tensor.dtype for tensor in region.inputs]
    return region.op, (*shapes, *dtypes), tuple(sorted(region.attrs.items()))


def programs_of(model: Any) -> list[tuple[IRModule, Region]]:
    """The programs of TVM's pipelines that are products or convolutions, with their regions.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or IRModule
        An ONNX model is imported as TVM does it or, if TVM cannot, as we do.

    Raises
    ------
    ModelError
        If it cannot be read.
    """
    mod = _imported(model)
    found = []
    for prepared in (legalized(mod), _with_free_layouts(mod)):
        for _, function in prepared.functions_items():
            if isinstance(function, tirx.PrimFunc):
                program = normalized(function)
                try:
                    found.append((program, region_of(program)))
                except ConfigError:
                    continue  # no product
    return found


def _with_free_layouts(mod: IRModule) -> IRModule:
    """The programs as `static_shape_tuning_pipeline(cpu_weight_prepack=True)` makes them."""
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    simple = ir.transform.Sequential(passes)(mod)
    return relax.transform.AttachAttrLayoutFreeBuffers()(legalized(simple))


def _imported(model: Any) -> IRModule:
    if isinstance(model, IRModule) or not is_onnx(model):
        return import_model(model, None).mod
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    try:
        if isinstance(model, (str, os.PathLike)):
            proto = onnx.load(model)
        else:
            proto = onnx.load_from_string(model) if isinstance(model, bytes) else model
        return from_onnx(proto, keep_params_in_input=False)
    except Exception as error:  # the importer raises whatever comes
        try:
            return import_model(model, None).mod
        except ModelError as ours:
            raise ours from error
