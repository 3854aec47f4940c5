"""How a graph is compiled: fusion, precision, fast_math, threads, instruction set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import msgspec
import onnx

import tvm_hybrid
from microkernels.isa import LADDER
from relay_passes.pipeline_options import FAST_MATH_LEVELS, FUSION_LEVELS, PRECISIONS
from tests.microkernels.isa_targets import target_of
from tests.stand_ins import running
from tests.stand_ins.isas_run import can_run, substitute_of
from tvm_hybrid.runtime import threads

HOST = "host"
THREADS = (1, 2, 7, 53, 64, 128)


class Settings(msgspec.Struct, frozen=True):
    """Arguments of `tvm_hybrid.compile`.

    Attributes
    ----------
    fusion, precision, fast_math : str
        As for `tvm_hybrid.compile`.
    threads : int
        Threads of one run.
    isa : str
        Instruction set of the code: "host", or one that stand-ins run if this CPU lacks it.
    """

    fusion: str = "coarse"
    precision: str = "auto"
    fast_math: str = "default"
    threads: int = 1
    isa: str = HOST


def draw_settings(rng: random.Random) -> Settings:
    """Draws mostly the users' usual settings, and sometimes any value of each setting."""
    names = [isa.name for isa in LADDER if can_run(isa.name)]
    return Settings(
        fusion=rng.choices(FUSION_LEVELS, (6, 2, 2))[0],
        precision=rng.choices(PRECISIONS, (8, 1, 1))[0],
        fast_math=rng.choices(FAST_MATH_LEVELS, (1, 6, 2))[0],
        threads=rng.choices(THREADS, (24, 8, 6, 1, 1, 1))[0],
        isa=rng.choice(names) if rng.random() < 0.25 else HOST,
    )


@contextmanager
def session(model: onnx.ModelProto, settings: Settings) -> Iterator[tvm_hybrid.InferenceSession]:
    """The compiled model; within, this process pretends to have the instruction set."""
    options = {
        "fusion": settings.fusion,
        "precision": settings.precision,
        "fast_math": settings.fast_math,
        "num_threads": settings.threads,
        "records": [],
    }
    source = model.SerializeToString()
    # More threads than this machine allows a user, to test many cores' chunks.
    with mock.patch.object(threads, "MOST_PER_CPU", max(THREADS)):
        if settings.isa == HOST:
            yield tvm_hybrid.InferenceSession(source, **options)
            return
        target = target_of(substitute_of(settings.isa))
        with running.pretending(settings.isa), running.made_for(settings.isa):
            yield tvm_hybrid.InferenceSession(source, target=target, **options)
