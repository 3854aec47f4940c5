"""`tvm-hybrid serve MODEL`: an example server, behind the HTTP protocol of KServe and Triton."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .base.options import AT_LEAST_ONE, OF_CODE, compile_options, model_argument

if TYPE_CHECKING:
    from ..options import CompileOptions


@click.command("serve")
@model_argument
@click.option("--name", help="What clients call the model. Default: the file's name.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen at; 0 takes one that is free.",
)
@click.option(
    "--streams",
    default=1,
    show_default=True,
    type=AT_LEAST_ONE,
    help="Runs at once, which share --threads.",
)
@click.option(
    "--queue-size",
    type=AT_LEAST_ONE,
    help="Runs that may wait; more are refused with 503. Default: four for each stream.",
)
@click.option(
    "--max-batch",
    default=1,
    show_default=True,
    type=AT_LEAST_ONE,
    help="Rows of requests that are put together into one run; 1: none are.",
)
@click.option(
    "--max-delay-ms",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Milliseconds that a request waits for others to be put together with.",
)
@compile_options(*OF_CODE, "num_threads")
def command(
    model: Path,
    name: str | None,
    host: str,
    port: int,
    streams: int,
    queue_size: int | None,
    max_batch: int,
    max_delay_ms: float,
    options: CompileOptions,
) -> None:
    """Serves MODEL over HTTP, by the inference protocol, version 2.

    It needs the extra `serve`: pip install 'tvm_hybrid[serve]'. Batches are for models whose first
    dimension is open, and whose rows do not depend on each other.
    """
    try:
        import uvicorn

        from ..serve.app import Server
    except ImportError as error:
        raise click.UsageError(
            f"{error.name} is not installed; pip install 'tvm_hybrid[serve]' brings it"
        ) from error
    from ..session.inference_session import InferenceSession

    session = InferenceSession(model, options=options, streams=streams, queue_size=queue_size)
    server = Server({name or model.stem: session}, max_batch, max_delay_ms / 1000)
    uvicorn.run(server.application, host=host, port=port, log_level="info")
