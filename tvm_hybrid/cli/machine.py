"""Commands about this machine: doctor, kernels, calibrate, completion."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from microkernels.base.errors import OutputError, TvmHybridError
from microkernels.base.files import require_writable, why_not_written, write_whole

from .base.console import output_console, show, working
from .base.options import AT_LEAST_ONE, FileCommand, OutputFile, json_option

if TYPE_CHECKING:
    from ..runtime.topology import Cpu, Topology


_COLOURS = {"ok": "", "warning": "yellow", "bad": "bold red"}


@click.command("doctor")
@json_option
def doctor(as_json: bool) -> int:
    """Shows versions, CPU, instruction sets, threads and settings; exit code 1 if something is bad.

    Include its output in bug reports.
    """

    facts = examine()
    table = Table("", "what", "found", show_header=False)
    topic = ""
    for fact in facts:
        if fact.topic != topic:
            table.add_section()
        first = fact.topic if fact.topic != topic else ""
        table.add_row(first, fact.name, Text(fact.value, _COLOURS[fact.state]))
        topic = fact.topic
    show(facts, as_json, table)
    return 1 if any(fact.state == BAD for fact in facts) else 0


@click.command("kernels", cls=FileCommand)
@click.option("--repeat", default=5, type=AT_LEAST_ONE, help="Turns of each microkernel.")
@click.option("--seconds", default=0.005, type=click.FloatRange(min=0), help="Length of a turn.")
@click.option(
    "--markdown",
    type=OutputFile(".md"),
    help="Write a Markdown table for documentation into this file.",
)
@json_option
def kernels(repeat: int, seconds: float, markdown: Path | None, as_json: bool) -> int:
    """Measures every microkernel that this CPU runs, on one thread, against the CPU's own peak.

    The peak of a pair of types is measured in the same run: the fastest tile with its weight in
    registers. Microkernels for instruction sets that the CPU lacks, or that TVM_HYBRID_ISA forbids,
    are left out.
    """
    from ..bench.bench_tables import kernel_speed_table
    from ..report.kernel_speed import kernel_page, measure_kernels

    with working("measuring microkernels"):
        report = measure_kernels(rounds=repeat, seconds=seconds)
    if markdown is not None:
        write_whole(markdown, "# Microkernels\n\n" + kernel_page(report))
    show(report, as_json, kernel_speed_table(report))
    return 0


@click.command("calibrate")
@click.option("--threads", type=AT_LEAST_ONE, help="Threads to measure. Default: one per core.")
@click.option(
    "--output", type=OutputFile(".json"), help="File to write. Default: a file in the user's cache."
)
def calibrate(threads: int | None, output: Path | None) -> int:
    """Measures clock, bandwidths and the cost of a fork, and writes a description of this machine.

    Takes some seconds on an idle machine. A description in the user's cache is used from then on;
    TVM_HYBRID_MACHINE, or --machine of other commands, names another one. `doctor` shows which
    description is used.
    """
    from microkernels.machines.host import calibrated_path

    from ..bench.calibrate import calibrate as measure
    from ..runtime.threads import resolve_threads
    from ..targets.resolve import cpu_name, host_target

    path = output or calibrated_path(cpu_name(host_target()))
    if output is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(why_not_written(path, error)) from error
    require_writable(path)
    with working("measuring this machine"):
        found = measure(resolve_threads(threads, here=True))
    write_whole(path, found.to_json())
    console = output_console()
    for name, number in found.numbers.items():
        console.print(f"{name}: {number.value} ({number.error or 0:.0%} apart)")
    console.print(f"written to {path}")
    return 0


PACKAGES = ("tvm_hybrid", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime",
            "xgboost-cpu")  # fmt: skip

VARIABLES = {
    "TVM_HYBRID_LOG": "level of the log on standard error: debug, info, warning, error",
    "TVM_HYBRID_ISA": "highest instruction set that code may use",
    "TVM_HYBRID_MACHINE": "description of this CPU for estimates, instead of the shipped one",
    "TVM_HYBRID_RECORDS": "tuning records to apply when none are named, or: none",
    "TVM_HYBRID_CACHE_DIR": "folder for downloads, compiled programs and results of calibrate",
    "TVM_HYBRID_CACHE": "0: compiled programs and kernels are neither kept nor looked up",
    "TVM_HYBRID_CACHE_BYTES": "most bytes of compiled programs (default 4 GiB); kernels: a 16th",
    "TVM_HYBRID_PROGRESS": "0: sessions write no line about compiling",
    "TVM_HYBRID_SPIN": "how long threads wait awake: run, always, never",
    "TVM_HYBRID_OPENVINO_PYTHON": "a Python that has OpenVINO, for benchmarks",
    "TVM_HYBRID_RULE_ERRORS": "raise: a mistake in a rule for generic loops ends the compilation",
    "TVM_NUM_THREADS": "threads of a run without a number",
    "OMP_NUM_THREADS": "threads of a run without a number, if TVM_NUM_THREADS is not set",
    "TVM_BIND_THREADS": "0: workers are not bound to CPUs, even if a place is named",
    "TVM_THREAD_POOL_SPIN_COUNT": "0: threads never wait awake, if TVM_HYBRID_SPIN is not set",
}

OK, WARNING, BAD = "ok", "warning", "bad"


@dataclass(frozen=True)
class Fact:
    """A line of the report; `state` is `ok`, `warning` or `bad`."""

    topic: str
    name: str
    value: str
    state: str = OK


def examine() -> list[Fact]:
    """Collects all facts, topic by topic."""
    variables = (
        Fact("environment", name, f"{os.environ.get(name, '(not set)')}: {meaning}")
        for name, meaning in VARIABLES.items()
    )
    return [*_versions(), *_cpu(), *_threads(), *_tools(), *variables]


def _versions() -> list[Fact]:
    from .. import version_check

    def pair() -> str:
        version_check.check()
        return "this pair works"

    facts = [Fact("versions", "python", platform.python_version())]
    for package in PACKAGES:
        try:
            fact = Fact("versions", package, metadata.version(package))
        except metadata.PackageNotFoundError:
            state = WARNING if package == "tvm_hybrid" else OK
            fact = Fact("versions", package, "not installed", state)
        facts.append(fact)
    facts.append(_checked("versions", "tvm with tvm-ffi", pair))
    hooks = metadata.entry_points(group="tvm.backends", name="tvm_hybrid")
    hook = ("registered", OK) if hooks else ("missing: install tvm_hybrid again", WARNING)
    return [*facts, Fact("versions", "tvm.backends hook", *hook)]


def _checked(topic: str, name: str, find: Callable[[], str]) -> Fact:
    """Makes a fact of the found value, or of the error that finding it raises."""
    try:
        return Fact(topic, name, find())
    except TvmHybridError as error:
        return Fact(topic, name, str(error), BAD)


def _cpu() -> list[Fact]:
    from microkernels.amx.permission import tile_permission
    from microkernels.base.host_cpu import processor
    from microkernels.isa import LADDER, host_features, host_isa, isa_named
    from microkernels.machines.host import path_in_force
    from microkernels.machines.machine import Machine

    from ..targets.resolve import cpu_name, host_target

    def levels() -> str:
        present = host_features()
        return ", ".join(isa.name for isa in LADDER if present.issuperset(isa.features))

    def caches() -> str:
        machine = Machine.from_target(host_target())
        sizes = (machine.l1_bytes, machine.l2_bytes, machine.l3_bytes)
        return ", ".join(f"L{level} {size >> 10} KB" for level, size in enumerate(sizes, 1))

    def description() -> str:
        found = Machine.from_target(host_target()).description
        path = path_in_force(cpu_name(host_target()))
        return f"{found.title}, {'shipped' if path is None else path}"

    def guessed() -> str:
        machine = Machine.from_target(host_target())
        guesses = machine.description.guesses(tiles=machine.isa.includes(isa_named("amx")))
        total = len(machine.description.numbers)
        if not guesses:
            return f"none of {total} numbers"
        advice = "`tvm-hybrid calibrate` measures clocks, caches, memory and forks"
        return f"{len(guesses)} of {total} numbers: {', '.join(guesses)}; {advice}"

    def level() -> str:
        used, highest = Machine.from_target(host_target()).isa.name, host_isa().name
        return used if used == highest else f"{used}: float32 is faster here than {highest}"

    used = {feature for isa in LADDER for feature in isa.features}
    permission = tile_permission()
    amx = Fact("cpu", "AMX", f"usable: {permission.reason}")
    if permission.state == "absent":
        amx = Fact("cpu", "AMX", "none on this CPU")
    elif permission.state == "denied":
        advice = "code for this machine is made for the next lower instruction set"
        amx = Fact("cpu", "AMX", f"{permission.reason}; {advice}", WARNING)
    return [
        Fact("cpu", "model", processor()),
        _checked("cpu", "LLVM's name", lambda: cpu_name(host_target())),
        _checked("cpu", "instruction sets", levels),
        _checked("cpu", "features", lambda: ", ".join(sorted(used & host_features())) or "none"),
        amx,
        _checked("cpu", "code is made for", level),
        Fact("cpu", "cap (TVM_HYBRID_ISA)", os.environ.get("TVM_HYBRID_ISA") or "none"),
        _checked("cpu", "data caches of a core", caches),
        _checked("cpu", "description", description),
        _checked("cpu", "guessed in it", guessed),
    ]


def _threads() -> list[Fact]:
    from ..runtime.threads import default_threads, physical_cores, why_default_threads
    from ..runtime.topology import format_cpus, host_topology

    topology = host_topology()
    cpus = format_cpus(cpu.number for cpu in topology.usable)
    quota = topology.quota

    def threads() -> str:
        return f"{default_threads()}, on any of {cpus}: {why_default_threads()}"

    return [
        Fact("threads", "CPUs allowed", str(len(os.sched_getaffinity(0)))),
        Fact("threads", "cores behind them", str(physical_cores())),
        Fact(
            "threads",
            "quota of CPU time",
            "none" if quota is None else f"{quota.cpus:.4g} CPUs ({quota.file})",
        ),
        *places(topology),
        _checked("threads", "threads of a run", threads),
    ]


def places(topology: Topology) -> list[Fact]:
    """The places that threads can be bound to, their CPUs, and where weights can lie."""
    from ..runtime.topology import format_cpus
    from ..runtime.weights import refusal

    def groups(of: Callable[[Cpu], int], name: str) -> str:
        found = topology.groups(of).items()
        return "; ".join(f"{name}{n}: CPUs {format_cpus(cpus)}" for n, cpus in found)

    cores = {cpu.core for cpu in topology.usable}
    run = [cpu.number for cpu in topology.usable[: len(cores)]]
    clusters = topology.groups(lambda cpu: cpu.cluster).values()
    nodes = topology.memory_nodes
    refused = refusal(nodes) if len(nodes) > 1 else ""
    placing = "weights can be placed" if len(nodes) > 1 else "weights stay where they are"
    return [
        Fact("threads", "sockets", groups(lambda cpu: cpu.socket, "socket:")),
        Fact("threads", "nodes", groups(lambda cpu: cpu.node, "node:")),
        Fact("threads", "share a last-level cache", "; ".join(map(format_cpus, clusters))),
        Fact(
            "threads",
            "memory nodes",
            f"{', '.join(map(str, nodes))}: {refused or placing}",
            WARNING if refused else OK,
        ),
        Fact("threads", "CPUs of threads='all'", f"{format_cpus(run)}, one a core"),
    ]


def _tools() -> list[Fact]:
    from microkernels.base.files import cache_dir

    from ..cache.cache_folder import KERNELS, PROGRAMS

    path = shutil.which("g++")
    compiler = "missing; needed only to export libraries", WARNING
    if path:
        compiler = _first_line([path, "--version"]), OK
    folder = cache_dir()
    parent = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    writable = parent.is_dir() and os.access(parent, os.W_OK)
    place = (str(folder), OK) if writable else (f"{folder} cannot be written", WARNING)
    facts = [
        Fact("tools", "python", sys.executable),
        Fact("tools", "g++", *compiler),
        Fact("tools", "cache folder", *place),
    ]
    for what, cached in (("compiled programs", PROGRAMS), ("compiled kernels", KERNELS)):
        count, size = cached.usage()
        facts.append(Fact("tools", what, f"{count}, {size / 1e6:.1f} MB"))
    return facts


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]} does not run: {error}"
    return done.stdout.partition("\n")[0]


# `tvm-hybrid completion bash|zsh|fish`: completion of commands and options in a shell.


VARIABLE = "_TVM_HYBRID_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Prints the script that lets SHELL complete commands, options, targets and files.

    Write it where your shell looks for completions, as in the examples; new shells then use it.
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    found = get_completion_class(shell)
    assert found is not None  # click has all three
    source = found(root.command, {}, "tvm-hybrid", VARIABLE).source()
    click.echo(source.strip("\n"))
