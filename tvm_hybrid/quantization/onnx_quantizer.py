"""Calls ONNX Runtime's quantiser, and turns its prints and log lines into notes."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from microkernels.base.errors import QuantizeError
from microkernels.isa import Isa
from relay_passes.pipeline_options import check_option

from ..frontend.onnx.graph.graph import captured_names

MODES = ("static", "dynamic", "weights")
RANGES = ("auto", "full", "reduced")
CALIBRATIONS = ("minmax", "entropy", "percentile")
BITS = (4, 8)
PRODUCTS = ("MatMul", "Gemm")
CONVOLUTIONS = ("Conv", "ConvTranspose")
# Quantised together with the product before them, whose output range then begins at 0.
RECTIFIERS = ("Relu", "Clip")
BETWEEN = (
    *("Add", "Mul", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool"),
    *("Concat", "Split", "Pad", "Resize", "Reshape", "Transpose", "Squeeze", "Unsqueeze"),
)
QUANTIZED = frozenset(
    {
        *("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm"),
        *("MatMulInteger", "ConvInteger", "MatMulNBits", "DynamicQuantizeMatMul"),
        *("MatMulIntegerToFloat", "DynamicQuantizeLSTM"),
    }
)


@dataclass(frozen=True)
class Settings:
    """The options of one quantisation.

    Attributes
    ----------
    mode : {"static", "dynamic", "weights"}
    operators : tuple of str
        The operators that are quantised.
    exclude : tuple of str
        Names of nodes that stay as they are.
    reduced : bool
        Whether weights have 7 bits.
    calibration : {"minmax", "entropy", "percentile"}
        How the range of an activation follows from the samples; in static mode only.
    bits, block : int
        Bits of a weight, and how many weights share a scale; in mode "weights" only.
    """

    mode: str
    operators: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    reduced: bool = False
    calibration: str = "minmax"
    bits: int = 4
    block: int = 32

    def __str__(self) -> str:
        if self.mode == "weights":
            return f"MatMulNBits, {self.bits} bits, a scale for each {self.block} weights"
        form = f"QDQ, {self.calibration}" if self.mode == "static" else "dynamic"
        kinds = ", ".join(self.operators)
        bits = 7 if self.reduced else 8
        return f"{form}, uint8 x int8 of {bits} bits by column; {kinds}"


def settings_for(model: onnx.ModelProto, isa: Isa, asked: Settings, weight_range: str) -> Settings:
    """The given settings, with default operators if none are named, and with the bits of weights.

    Raises
    ------
    QuantizeError
        If the model is quantised already, lacks a node to exclude, or has nothing to quantise.
    CompileError
        If an option has an unknown value.
    """
    mode, operators = asked.mode, asked.operators
    check_option("mode", mode, MODES)
    check_option("weight_range", weight_range, RANGES)
    check_option("calibration", asked.calibration, CALIBRATIONS)
    if asked.bits not in BITS:
        raise QuantizeError(f"weights have 4 or 8 bits, not {asked.bits}")
    if asked.block < 16 or asked.block & (asked.block - 1):
        raise QuantizeError(f"a block is a power of two from 16 up, not {asked.block}")
    nodes = model.graph.node
    done = next((node for node in nodes if node.op_type in QUANTIZED), None)
    if done is not None:
        raise QuantizeError(
            f"the model is quantised already: it has {done.op_type} {done.name!r}; give the "
            "float32 model"
        )
    unknown = sorted(set(asked.exclude) - {node.name for node in nodes})
    if unknown:
        raise QuantizeError(
            f"there is no node {', '.join(map(repr, unknown))} to exclude; "
            "`tvm-hybrid explain` lists the nodes"
        )
    present = {node.op_type for node in nodes}
    usual: tuple[str, ...] = PRODUCTS
    if mode == "static" and present & {*CONVOLUTIONS}:
        usual = tuple(name for name in (*CONVOLUTIONS, *PRODUCTS, *BETWEEN) if name in present)
    wanted = tuple(operators or usual)
    if not present & {*wanted}:
        raise QuantizeError(
            f"nothing to quantise: the model has no {' or '.join(wanted)} "
            f"(it has {', '.join(sorted(present)) or 'no nodes'})"
        )
    if mode == "static" and not operators:
        wanted += tuple(name for name in RECTIFIERS if name in present and name not in wanted)
    reduced = weight_range == "reduced"
    if weight_range == "auto" and mode != "weights":
        reduced = not isa.multiplies_bytes
    return replace(asked, operators=wanted, reduced=reduced)


HOW = "pip install onnx_ir onnxruntime sympy brings it"
LARGEST = 2**31 - 1
OPSET_OF_AXIS = 13
"""First opset whose QuantizeLinear and DequantizeLinear have `axis`: a scale for each channel."""


def require_quantizer(mode: str) -> None:
    """Checks that the packages of a mode are installed.

    Raises
    ------
    QuantizeError
        If a package is missing; the message has the command that installs it.
    """
    weights = ("onnxruntime.quantization.matmul_nbits_quantizer",)
    for name in weights if mode == "weights" else ("onnxruntime.quantization", "sympy"):
        try:
            with quiet():  # one of them configures the logging of the whole process
                importlib.import_module(name)
        except ImportError as error:
            missing = (error.name or name).partition(".")[0]
            raise QuantizeError(f"{missing} is not installed; {HOW}") from error


def write_quantized(
    model: onnx.ModelProto,
    path: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    settings: Settings,
) -> list[str]:
    """Quantises a model and writes the result.

    Parameters
    ----------
    model : onnx.ModelProto
        In float32, with all weights inside; it is not changed.
    path : Path
        The file to write.
    samples : sequence of mapping
        Inputs from which ranges are found; in static mode only.
    settings : Settings

    Returns
    -------
    list of str
        Settings that the quantiser could not follow.

    Raises
    ------
    QuantizeError
        If the quantiser fails, or nothing was quantised.
    """
    name = settings.mode
    if name != "weights" and model.ByteSize() > LARGEST:
        raise QuantizeError(
            f"the model has {model.ByteSize() / 1e9:.1f} GB, and ONNX Runtime's {name} "
            "quantisation takes 2 GB; mode weights takes any"
        )
    with tempfile.TemporaryDirectory() as folder, quiet() as notes:
        if name == "static" and opset_of(model) < OPSET_OF_AXIS:
            notes.append(f"converted from opset {opset_of(model)} to {OPSET_OF_AXIS}")
            model = _of_newer_opset(model)
        try:
            if name == "weights":
                _weights(model, path, settings)
            else:
                prepared = _prepared(model, Path(folder), optimise=name == "static")
                _eight_bits(prepared, path, samples, settings)
        except QuantizeError:
            raise
        except Exception as error:  # the quantiser's exceptions have no common base
            raise QuantizeError(
                f"onnxruntime cannot quantise the model: {_first(error)}"
            ) from error
    written = onnx.load(path, load_external_data=False)
    if not any(node.op_type in QUANTIZED for node in written.graph.node):
        raise QuantizeError(
            f"nothing was quantised: no {' or '.join(settings.operators)} of the model has a "
            "constant float32 weight, or quantised inputs"
        )
    return notes


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's operator set in a model; 1 if the model names none."""
    found = (each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    return next(found, 1)


def _of_newer_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model converted to `OPSET_OF_AXIS`, the oldest opset with a scale for each channel.

    Raises
    ------
    QuantizeError
        If ONNX cannot convert the model.
    """
    try:
        return version_converter.convert_version(model, OPSET_OF_AXIS)
    except Exception as error:  # the converter raises RuntimeError and errors of its own
        raise QuantizeError(
            f"static quantisation needs opset {OPSET_OF_AXIS}, and the model of opset "
            f"{opset_of(model)} cannot be converted: {_first(error)}; export it again with opset "
            f"{OPSET_OF_AXIS} or newer, or take mode dynamic"
        ) from error


def _prepared(model: onnx.ModelProto, folder: Path, optimise: bool) -> Path:
    """Writes the model with inferred shapes, and with batch norms folded into convolutions."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source, path = folder / "model.onnx", folder / "prepared.onnx"
    onnx.save(model, source)
    try:
        from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

        inference = SymbolicShapeInference(2**31 - 1, False, False, 0)
        # Not `infer_shapes`: it leaves a copy of the model in the current folder if it does not
        # find all shapes.
        inference._preprocess(onnx.load(source))
        complete = False
        while inference.run_:
            complete = inference._infer_impl()
        inference._update_output_from_vi()
        if not complete:
            raise QuantizeError("incomplete symbolic shape inference")
        onnx.save(inference.out_mp_, source)
    except Exception as error:  # symbolic shape inference knows fewer operators than the quantiser
        logging.getLogger().error("without symbolic shapes: %s", _first(error))
    quant_pre_process(source, path, skip_optimization=not optimise, skip_symbolic_shape=True)
    return path


def write_static(
    source: Path, path: Path, samples: Sequence[Mapping[str, np.ndarray]], **options: Any
) -> None:
    """Writes a model in QDQ form; `options` are `quantize_static`'s of onnxruntime."""
    from onnxruntime import quantization

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]  # has no types
        """The samples, one after the other."""

        def __init__(self) -> None:
            self._rest = iter(samples)

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self._rest, None)

    types, form = quantization.QuantType, quantization.QuantFormat.QDQ
    options |= {"activation_type": types.QUInt8, "weight_type": types.QInt8, "per_channel": True}
    quantization.quantize_static(source, path, Samples(), quant_format=form, **options)


def _eight_bits(
    source: Path, path: Path, samples: Sequence[Mapping[str, np.ndarray]], settings: Settings
) -> None:
    """Writes a model with weights and activations of 8 bits, statically or dynamically."""
    from onnxruntime import quantization

    options: dict[str, Any] = {"op_types_to_quantize": list(settings.operators)}
    options |= {"reduce_range": settings.reduced, "nodes_to_exclude": list(settings.exclude)}
    if settings.mode == "static":
        method = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
        options["calibrate_method"] = quantization.CalibrationMethod[method[settings.calibration]]
        write_static(source, path, samples, **options)
    else:
        narrow = quantization.QuantType.QInt8
        quantization.quantize_dynamic(source, path, per_channel=True, weight_type=narrow, **options)


def _weights(model: onnx.ModelProto, path: Path, settings: Settings) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    copy = onnx.ModelProto()
    copy.CopyFrom(model)  # the quantiser changes its argument
    if "Gemm" in settings.operators:
        plain_products(copy, settings.exclude)
    form = {"bits": settings.bits, "block_size": settings.block, "is_symmetric": True}
    quantizer = MatMulNBitsQuantizer(copy, nodes_to_exclude=list(settings.exclude), **form)
    quantizer.process()
    found = quantizer.model.model
    if found.ByteSize() > LARGEST:
        raise QuantizeError(
            f"the result has {found.ByteSize() / 1e9:.1f} GB, and one ONNX file holds 2 GB"
        )
    onnx.save(found, path)


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Silences the quantiser, which prints and logs; yields a list that gets its error lines."""
    notes: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage().strip().partition("\n")[0]
            if not line.startswith("Traceback"):
                notes.append(line)

    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    root.setLevel(logging.ERROR)
    root.handlers = [Collect(logging.ERROR)]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield notes
    finally:
        root.setLevel(level)
        root.handlers = handlers


def _first(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def plain_products(model: onnx.ModelProto, exclude: tuple[str, ...] = ()) -> None:
    """Gemm as MatMul and Add: ONNX Runtime's quantiser of weights only knows MatMul.

    Before

        y = Gemm(x, w, b, transB=1)

    After

        y = Add(MatMul(x, w transposed), b)

    Rewrites every Gemm whose second operand is a float32 weight. A Gemm that scales, or transposes
    its first operand, stays.

    Parameters
    ----------
    model : onnx.ModelProto
        It is changed.
    exclude : tuple of str
        Names of nodes that stay as they are.
    """
    weights = {each.name: each for each in model.graph.initializer}
    made: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        weight = weights.get(node.input[1]) if _is_plain(node) else None
        if weight is None or node.name in exclude or weight.data_type != onnx.TensorProto.FLOAT:
            nodes.append(node)
            continue
        name = node.input[1]
        if any(each.name == "transB" and each.i for each in node.attribute):
            if name not in made:
                made[name] = f"{name}_transposed"
                turned = np.ascontiguousarray(numpy_helper.to_array(weight).T)
                model.graph.initializer.append(numpy_helper.from_array(turned, made[name]))
            name = made[name]
        nodes += _product(node, name)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    read = {item.name for item in model.graph.output}
    for node in nodes:
        read |= {*node.input} | captured_names(node)
    left = [each for each in model.graph.initializer if each.name not in made.keys() - read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(left)


def _is_plain(node: onnx.NodeProto) -> bool:
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return (
        node.op_type == "Gemm"
        and node.domain in ("", "ai.onnx")
        and not given.get("transA", 0)
        and given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0
    )


def _product(node: onnx.NodeProto, weight: str) -> list[onnx.NodeProto]:
    (result,) = node.output
    bias = node.input[2] if len(node.input) > 2 else ""
    product = f"{result}_product" if bias else result
    found = [helper.make_node("MatMul", [node.input[0], weight], [product], name=node.name)]
    if bias:
        add = f"{node.name}_bias" if node.name else ""
        found.append(helper.make_node("Add", [product, bias], [result], name=add))
    return found
