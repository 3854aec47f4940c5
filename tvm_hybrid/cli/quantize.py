"""`tvm-hybrid quantize MODEL -o int8.onnx --data DIR`: from float32 to 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .base import options as shared
from .base.console import show, working


@click.command("quantize", shared.Explained)
@shared.model_argument
@click.option("-o", "--output", required=True, metavar="FILE.onnx", type=shared.FILE)
@click.option("--data", metavar="DIR|FILE.npz", type=click.Path(path_type=Path))
@click.option("--static", "mode", flag_value="static", default=True, show_default=False)
@click.option("--dynamic", "mode", flag_value="dynamic")
@click.option("--weights", "bits", type=click.Choice(["4", "8"]))
@click.option("--block", default=32, type=shared.AT_LEAST_ONE)
@click.option("--weight-range", default="auto", type=click.Choice(["auto", "full", "reduced"]))
@click.option(
    "--calibration", default="minmax", type=click.Choice(["minmax", "entropy", "percentile"])
)
@click.option("--operators", metavar="Conv,MatMul")
@click.option("--exclude", metavar="NODE", multiple=True)
@click.option("--samples", default=128, type=shared.AT_LEAST_ONE)
@click.option("--target", type=shared.TargetName())
@shared.num_threads_option
@click.option("--seconds", default=0.05, type=click.FloatRange(min=0))
@click.option("--seed", default=0)
@shared.json_option
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

    Options
    -------
    --output
        The model to write.
    --data
        Samples: a folder of .npz (arrays by input), .npy or input_0.pb files, or one .npz whose
        arrays have the samples along a first axis.
    --static
        Ranges of activations come from --data (the default).
    --dynamic
        Ranges of activations are found at every run; products alone are quantised.
    --weights
        Only weights of products are narrow, of so many bits (MatMulNBits).
    --block
        How many weights share a scale with --weights.
    --weight-range
        Weights of 8 bits (full) or 7. auto: 7 for a CPU without VNNI, which is faster so.
    --calibration
        How ranges follow from the samples.
    --operators
        Types of nodes to quantise. Default: products and convolutions, and with convolutions what
        lies between them.
    --exclude
        A node that stays float32.
    --samples
        Samples to read at most.
    --target
        CPU that the model is meant for. Default: this one.
    --seconds
        Length of a turn of the measurement; 0: none.
    --seed
        For random inputs.
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
