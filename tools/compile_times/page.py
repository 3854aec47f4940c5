"""The page of documentation about compile times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay_passes.pipeline import Phase
from tvm_hybrid.report.timing import markdown_table

from . import results
from .results import AGAIN, COLD, ONNXRUNTIME, Row

INTRODUCTION = """\
# Compile times

Written by `{command} --markdown FILE`, on {cpu}; threads: {threads}. OpenVINO: {openvino}.
Models are made by the command itself with seeded weights, in the forms of public models
(`tools/compile_times`); those called "dynamic" leave their sizes open.

CPU seconds until the first answer, of all threads and of the linker: a session, and one run.
What Python takes to import modules is not among them: {modules:.1f} CPU s of ours, {again:.1f}
where nothing is compiled, {theirs:.1f} of ONNX Runtime.

- CPU s, wall s: an empty cache of programs. A start ends after {limit:.0f} CPU seconds.
- fast start: `InferenceSession(..., start="fast")`, where NumPy answers first.
- again: the same model in a new process, its program being in the cache.
- other head, other batch: a model that differs in its last layer, or in its known batch, in a new
  process with the same cache.
- ONNX Runtime, OpenVINO: the same of theirs, in the same minutes.
- MB: the most memory of the first of these processes.
- programs: one for all sizes, or each for the sizes that arrive.
- cost evaluations, pass visits: how often functions that estimate costs, and functions of passes
  and of the front end, are entered; TVM's passes: how often Python calls one.
"""

STAGES = """
## By stage

CPU seconds of the first start by stage. The numbers are the phases of `relay_passes/pipeline.py`:
{phases}. "Kept on disk" is the program's way into the cache, with
the linker's work. Columns "of it" are parts of the stages: the choice of configurations,
templates, TVM's passes over kernels, LLVM's code with its optimizations, and the emission of
machine code.
"""


def page(rows: Sequence[Row], found: Mapping[str, object]) -> str:
    """The page, with both tables and with the reasons of what is missing."""
    text = INTRODUCTION.format(
        **{name: found[name] for name in ("command", "cpu", "threads", "limit")},
        openvino=found["OpenVINO"],
        modules=results.modules(rows, COLD),
        again=results.modules(rows, AGAIN),
        theirs=results.modules(rows, ONNXRUNTIME),
    )
    lines = markdown_table(*results.overview(rows))
    lines += ["", *(f"- {note}" for note in results.notes(rows))]
    phases = ", ".join(f"{at} {phase.value}" for at, phase in enumerate(Phase, 1))
    lines += STAGES.format(phases=phases).rstrip().split("\n")
    lines += markdown_table(*results.stages(rows))
    return "\n".join([text.rstrip(), *lines]) + "\n"
