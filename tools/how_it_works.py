"""Writes docs/how_it_works.md and its picture from a real run: `python -m tools.how_it_works`.

One block of a transformer's feed-forward part is compiled at each level of fusion. The page shows
what the compiler made: the modules between the phases, the decisions, the assembly of the first
product's inner loop, and the time of a run. The text between these is in how_it_works.md here.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper

import tvm_hybrid
from microkernels.base.host_cpu import host_cpu
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.template import template_for
from tvm_hybrid.report.timing import Timing, interleave, time_calls

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS, WIDTH, HIDDEN = 32, 128, 512
LEVELS = ("none", "fine", "coarse")
WIDEST = 150  # most characters of a line of the page


class Run:
    """A program and its input, to be timed in turns with others."""

    def __init__(self, program: tvm_hybrid.Executable, tensor: tvm.runtime.Tensor) -> None:
        self.program, self.tensor = program, tensor

    def run_for(self, seconds: float) -> list[float]:
        """Runs for some seconds, as `Contestant.run_for` does."""
        return time_calls(lambda: self.program.run(self.tensor), seconds)


def block_model() -> onnx.ModelProto:
    """A model: two products with bias, ReLU, residual and layer normalisation."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.standard_normal((WIDTH, HIDDEN)) / WIDTH**0.5,
        "b1": random.standard_normal(HIDDEN),
        "w2": random.standard_normal((HIDDEN, WIDTH)) / HIDDEN**0.5,
        "gamma": np.ones(WIDTH),
        "beta": np.zeros(WIDTH),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["up"]),
        helper.make_node("Add", ["up", "b1"], ["biased"]),
        helper.make_node("Relu", ["biased"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "w2"], ["down"]),
        helper.make_node("Add", ["down", "x"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "gamma", "beta"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH]) for name in "xy")
    constants = [numpy_helper.from_array(v.astype("float32"), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "block", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def module_after(folder: Path, name: str, function: str = "main") -> str:
    """One function of the module that `dump_ir` wrote after a pass, shortened."""
    (path,) = sorted(folder.glob(f"*_tvm_hybrid.{name}.py"))[-1:]
    lines = path.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f"def {function}(" in line)
    found = [lines[start]]
    for line in lines[start + 1 :]:
        if line.strip().startswith(("@", "# Metadata")):
            break
        found.append(line)
    return "\n".join(shortened(textwrap.dedent("\n".join(found)).splitlines()))


def shortened(lines: Iterable[str]) -> list[str]:
    """Lines without text of no interest here: repeated annotations, long attributes."""
    text = "\n".join(line for line in lines if line.strip() and "func_attr" not in line)
    text = re.sub(r'metadata\["ir\.GenericConst"\]\[(\d+)\]', r"constant\1", text)
    text = re.sub(r': R\.Tensor\(\(([\d, ]+)\), dtype="float32"\)(?= =)', r"", text)
    text = text.replace(', dtype="float32"', "").replace(", out_dtype=None", "")
    return [line[:WIDEST] for line in text.splitlines()]


def inner_loop(options: PipelineOptions, path: Path) -> tuple[str, str]:
    """The name of the first product's kernel, and a piece of the assembly of its inner loop."""
    regions = collect_regions(tvm_hybrid.import_onnx(path).mod, options)
    region = next(each for each in regions if each.op == "matmul")
    template = template_for(region.op)
    config = template.default_config(region, options.machine)
    function = template.build(region, config, options.machine.isa)
    assembly = tvm.compile(
        function.with_attr("global_symbol", "kernel"), target=options.target
    ).mod.inspect_source("asm")
    lines = [line.strip().expandtabs(1) for line in assembly.splitlines()]
    lines = [line for line in lines if line and not line.startswith((".", "#"))]
    fused = [number for number, line in enumerate(lines) if line.startswith("vfmadd")]
    middle = fused[len(fused) // 2]
    name = template.kernel_name(region, config, options.machine.isa)
    return name, "\n".join(lines[middle - 6 : middle + 10])


def fenced(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def decisions_of(executable: tvm_hybrid.Executable) -> str:
    rows = [f"| {d.op} | `{d.kernel}` | {d.reason} |" for d in executable.explain()]
    return "\n".join(["| operators | kernel | why |", "|---|---|---|", *rows])


def draw(times: dict[str, float], counts: dict[str, int], path: Path) -> None:
    """Draws the times of the three levels of fusion."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tvm_hybrid"
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 1.9))
    bars = axis.barh([f'fusion="{level}"' for level in times], list(times.values()))
    labels = [
        f"{time:.0f} us, {counts[level]} kernel{'s' * (counts[level] > 1)}"
        for level, time in times.items()
    ]
    axis.bar_label(bars, labels, padding=4)
    axis.set(xlabel="least time of a run, microseconds", xlim=(0, max(times.values()) * 1.35))
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Compiles and measures, then writes the page and its picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "block.onnx"
        onnx.save(block_model(), path)
        programs = {
            level: tvm_hybrid.compile(path, num_threads=1, fusion=level, dump_ir=folder / level)
            for level in LEVELS
        }
        x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype("float32")
        tensor = tvm.runtime.tensor(x)
        runs = {level: Run(program, tensor) for level, program in programs.items()}
        times, _ = interleave(runs, rounds=10, seconds=0.2)
        options = PipelineOptions(target=tvm_hybrid.resolve_target(None), threads=1, fusion="fine")
        kernel, loop = inner_loop(options, path)
        draw(
            {level: Timing.of(times[level]).min_us for level in LEVELS},
            {level: len(list(programs[level].explain())) for level in LEVELS},
            DOCS / "how_it_works.svg",
        )
        parts = {
            "cpu": host_cpu(),
            "imported": fenced(module_after(folder / "fine", "inline_functions")),
            "regions": fenced(module_after(folder / "fine", "partition")),
            "region": fenced(module_after(folder / "fine", "partition", "fused_matmul")),
            "lowered": fenced(module_after(folder / "fine", "lower_regions")),
            "kernel": kernel,
            "loop": fenced(loop, "asm"),
            "fine": decisions_of(programs["fine"]),
            "coarse": decisions_of(programs["coarse"]),
            "rows": str(ROWS),
            "width": str(WIDTH),
            "hidden": str(HIDDEN),
        }
    text = Path(__file__).with_suffix(".md").read_text()
    (DOCS / "how_it_works.md").write_text(
        re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], text)
    )


if __name__ == "__main__":
    main()
