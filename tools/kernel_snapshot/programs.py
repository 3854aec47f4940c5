"""The programs of kernel snapshots: models, their sizes and types, and CPUs to compile for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import tvm_hybrid
from microkernels.isa import LADDER
from tools.compile_times.corpus import build

LEVELS = {isa.name: isa.cpu for isa in LADDER if isa.vector_bits > 32}
"""A CPU of each instruction set level."""

THREADS = 2
"""Of every program."""

_ONNX = (
    *(("minilm", "auto"), ("minilm", "bf16"), ("minilm_qdq", "auto")),
    *(("t5_encoder", "auto"), ("t5_decoder", "bf16")),
    *(("squeezenet", "auto"), ("shufflenet", "auto"), ("shufflenet", "bf16")),
    *(("voice_activity", "auto"), ("events", "auto"), ("atoms", "auto")),
    *(("tagger", "auto"), ("lstm_59", "auto"), ("gru_31", "auto")),
)
_TORCH = (("mlp", "bfloat16"), ("cnn", "float32"), ("encoder", "float32"), ("gpt", "float32"))


@dataclass(frozen=True)
class Program:
    """A model that becomes a program.

    Attributes
    ----------
    source : {"onnx", "torch"}
    model : str
        Its name in `tools.compile_times.corpus` or in `tools.doors.torch_models`.
    kind : str
        The option "precision" of an ONNX model, the type of the weights of a module.
    dynamic : bool
        Whether it has dynamic sizes.
    """

    source: str
    model: str
    kind: str
    dynamic: bool

    @property
    def name(self) -> str:
        """What it is called in files and on the command line."""
        return "_".join((self.source, self.model, self.kind, *["dynamic"] * self.dynamic))

    def arguments(self) -> dict[str, Any]:
        """Arguments of `tvm_hybrid.compile`: the model and its sizes."""
        if self.source == "onnx":
            made = build(self.model + "_dynamic" * self.dynamic)
            # Inputs that decide what is computed, such as the one of a branch.
            values = made.values if self.dynamic else None
            return {
                "model": made.proto,
                "precision": self.kind,
                "keep_open": self.dynamic,
                "values": values,
            }
        import torch

        from tools.doors.torch_models import torch_model

        module = torch_model(self.model, self.kind, small=True)
        first = {0: torch.export.Dim.AUTO}
        return {
            "model": module.module,
            "example_inputs": module.inputs,
            "dynamic_shapes": tuple(first for _ in module.inputs) if self.dynamic else None,
            "keep_open": self.dynamic,
        }


def compile_for(cpu: str, arguments: dict[str, Any]) -> None:
    """Compiles a program for a CPU."""
    tvm_hybrid.compile(target=cpu, num_threads=THREADS, records=[], **arguments)


PROGRAMS = {
    program.name: program
    for source, models in (("onnx", _ONNX), ("torch", _TORCH))
    for (model, kind), dynamic in itertools.product(models, (False, True))
    for program in [Program(source, model, kind, dynamic)]
}
"""All programs, by name."""
