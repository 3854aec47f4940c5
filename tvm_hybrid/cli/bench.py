"""`tvm-hybrid bench MODEL`: measures us, ONNX Runtime and stock TVM in one interleaved run.

With `--streams` it measures throughput under several callers, with `--layers` the convolutions of a
network instead. With `--predict` it runs nothing: it shows what a model of AMX predicts.
"""

from __future__ import annotations

from typing import Any

import click

from ..bench.peers.peers import PYTHON_VARIABLE
from .base.models import input_options
from .base.options import AT_LEAST_ONE, FILE, SECONDS, Counts, compile_options, json_option
from .bench_modes import WARMUP, BenchRequest, Turns


@click.command("bench")
@click.argument("model", required=False, type=FILE)
@input_options
@click.option(
    "--peers",
    show_default="ort,stock; for layers and streams ort,openvino",
    help="Contestants besides us: ort (ONNX Runtime), openvino, stock (TVM without this plugin).",
)
@click.option(
    "--repeat",
    show_default="10; for layers 20, for streams 5",
    type=AT_LEAST_ONE,
    help="Turns of each contestant.",
)
@click.option(
    "--seconds",
    show_default="0.1; for layers 0.03, for streams 1",
    type=click.FloatRange(min=0),
    help="Length of a turn.",
)
@click.option(
    "--duration",
    type=SECONDS,
    help="Seconds that each contestant is measured, with each number of streams, in place of "
    "--repeat.",
)
@click.option(
    "--warmup",
    default=WARMUP,
    type=click.FloatRange(min=0),
    help="Seconds that each contestant runs before it is measured, after its first run.",
)
@click.option(
    "--openvino-python",
    metavar="PYTHON",
    help=f"The Python that has OpenVINO (pip install openvino numpy). Default: {PYTHON_VARIABLE}, "
    "else this one.",
)
@click.option(
    "--streams",
    metavar="N,N,...",
    type=Counts("numbers from 1 up"),
    help="Measure throughput: so many runs at once, which share --threads.",
)
@click.option(
    "--callers",
    show_default="as many as streams",
    type=AT_LEAST_ONE,
    help="Requests under way at once, with --streams.",
)
@click.option(
    "--csv",
    "table",
    metavar="FILE",
    type=FILE,
    help="Write the results into this file, too, as comma-separated values.",
)
@click.option(
    "--layers",
    metavar="NETWORK",
    help="Measure, in place of a MODEL, each convolution of resnet18, in f32 and int8.",
)
@click.option(
    "--markdown",
    type=FILE,
    help="Write the tables of --layers as a page of documentation into this file.",
)
@click.option(
    "--variants",
    is_flag=True,
    help="Let us also run without coarse fusion (fine) and without any (none), with what it costs.",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Run nothing: show what AMX kernels are predicted to do, for MODEL or a table of shapes.",
)
@compile_options()
@json_option
def command(
    repeat: int | None,
    seconds: float | None,
    duration: float | None,
    warmup: float,
    **settings: Any,
) -> int:
    """Measures MODEL: percentiles and least time of a run, requests a second, GFLOP/s, ratios.

    Results are compared with those of ONNX Runtime without optimisation. A row says by how much a
    contestant differs, where, and why if that is known; exit code 1 if we do.

    The contestants take turns; each runs with the same number of threads on the same inputs. Only
    ratios within one table mean anything. GFLOP/s count matrix products and convolutions, and
    refer to the least time. With --variants the ratio of such a row is what fusion gains.

    With --streams callers send one request after the other, all at once: requests/s are those of
    all callers, times include waiting, and the ratio is of requests/s. Each run has its share of
    --threads; ONNX Runtime's session is called by as many threads, OpenVINO is in throughput mode.

    With --layers each convolution of a network is a model of its own. One table gives the time of
    such a model, whose input and output are NCHW, and that of its kernel alone. Without --threads
    it is measured with one thread and with all.

    With --predict nothing is compiled or run, and no AMX is needed: cycles, share of peak, tile
    instructions and bytes from each level of memory come from a performance model, and are labelled
    so. Without --target it is about Sapphire Rapids.
    """
    turns = Turns(repeat, seconds, duration, warmup)
    return BenchRequest(turns=turns, **settings).run()
