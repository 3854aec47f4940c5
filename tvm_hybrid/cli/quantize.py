"""`tvm-hybrid quantize MODEL -o int8.onnx --data DIR`: from float32 to 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .base.console import show, working
from .base.options import (
    AT_LEAST_ONE,
    FILE,
    TargetName,
    json_option,
    model_argument,
    num_threads_option,
)


@click.command("quantize")
@model_argument
@click.option(
    "-o", "--output", required=True, metavar="FILE.onnx", type=FILE, help="The model to write."
)
@click.option(
    "--data",
    metavar="DIR|FILE.npz",
    type=click.Path(path_type=Path),
    help="Samples: a folder of .npz (arrays by input), .npy or input_0.pb files, or one .npz whose "
    "arrays have the samples along a first axis.",
)
@click.option(
    "--static",
    "mode",
    flag_value="static",
    default=True,
    show_default=False,
    help="Ranges of activations come from --data (the default).",
)
@click.option(
    "--dynamic",
    "mode",
    flag_value="dynamic",
    help="Ranges of activations are found at every run; products alone are quantised.",
)
@click.option(
    "--weights",
    "bits",
    type=click.Choice(["4", "8"]),
    help="Only weights of products are narrow, of so many bits (MatMulNBits).",
)
@click.option(
    "--block", default=32, type=AT_LEAST_ONE, help="How many weights share a scale with --weights."
)
@click.option(
    "--weight-range",
    default="auto",
    type=click.Choice(["auto", "full", "reduced"]),
    help="Weights of 8 bits (full) or 7. auto: 7 for a CPU without VNNI, which is faster so.",
)
@click.option(
    "--calibration",
    default="minmax",
    type=click.Choice(["minmax", "entropy", "percentile"]),
    help="How ranges follow from the samples.",
)
@click.option(
    "--operators",
    metavar="Conv,MatMul",
    help="Types of nodes to quantise. Default: products and convolutions, and with convolutions "
    "what lies between them.",
)
@click.option("--exclude", metavar="NODE", multiple=True, help="A node that stays float32.")
@click.option("--samples", default=128, type=AT_LEAST_ONE, help="Samples to read at most.")
@click.option(
    "--target", type=TargetName(), help="CPU that the model is meant for. Default: this one."
)
@num_threads_option
@click.option(
    "--seconds",
    default=0.05,
    type=click.FloatRange(min=0),
    help="Length of a turn of the measurement; 0: none.",
)
@click.option("--seed", default=0, help="For random inputs.")
@json_option
def command(
    model: Path,
    output: Path,
    mode: str,
    bits: str | None,
    operators: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Quantises MODEL, of float32, by onnxruntime's quantiser, and checks and measures the result.

    The settings are those that kernels here like: QDQ, int8 weights with a scale for each column,
    uint8 activations. The tables show how far results are from those of MODEL, here and in ONNX
    Runtime, and what a run takes. Exit code 1 if results of the quantised model here are not those
    of ONNX Runtime. The file appears whole or not at all.
    """
    if bits is not None and mode == "dynamic":
        raise click.UsageError("--dynamic and --weights exclude each other")
    if settings["data"] is None and mode == "static" and bits is None:
        raise click.UsageError(
            "--static needs samples: give --data a folder or an .npz file, or choose --dynamic or "
            "--weights 4, which need none"
        )
    from ..quantization import quantize
    from ..quantization.quantize_model import accuracy_table, lines, time_table

    with working(f"quantising {model.name}") as step:
        report = quantize(
            model,
            output,
            mode=mode if bits is None else "weights",
            bits=int(bits or 4),
            operators=[name for name in (operators or "").split(",") if name] or None,
            progress=step,
            **settings,
        )
    times = [time_table(report)] if report.timings else []
    show(report, as_json, accuracy_table(report), *times, *lines(report))
    return 0 if report.passed else 1
