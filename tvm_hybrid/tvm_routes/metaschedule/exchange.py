"""Writes records as a MetaSchedule database, for those who compile with TVM's own pipeline.

The best record of a region becomes a trace: TVM's program of the region, scheduled around our
microkernel by the record's configuration. An annotation holds the record, so that `import_records`
can read it back. Foreign traces whose program is one of our regions are kept as `TraceRecord`.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from tvm import IRModule, ir, relax, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.target import Target

from microkernels.base import errors
from microkernels.base.errors import ConfigError, RecordError, TvmHybridError
from microkernels.base.tvm_compat.metaschedule_database import ANNOTATION, Entry, MetaScheduleFolder
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region
from tir_schedules.core.template import has_template, template_for

from ...frontend.model_input import import_model
from ...records.record import Record
from ...records.record_file import Located
from ...records.record_store import RecordStore, trusted
from ...targets.resolve import resolve_target
from .schedule import schedule_product
from .trace import MICROSECONDS, DatabaseWriter, TraceRecord, trace_record, traces_of
from .workload import first_line, knows_constants, legalized, normalized, region_of, workload_of


@dataclass
class Exchange:
    """The result of an export or import.

    Attributes
    ----------
    taken : list of str
        Workload keys of the records that were written.
    known : int
        Number of records that were there already.
    left_out : list of (str, str)
        What was not written, and why.
    partly : list of (str, str)
        Records written in only one of their two forms (weights as they are, weights packed at
        compile time), and why not in the other.
    programs : int
        Entries written to the database, by an export.
    foreign : int
        Number of imported records that tvm_hybrid did not measure.
    """

    taken: list[str] = field(default_factory=list)
    known: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    partly: list[tuple[str, str]] = field(default_factory=list)
    programs: int = 0
    foreign: int = 0


def export_records(
    store: RecordStore,
    folder: Path,
    machine: str | None = None,
    threads: int | None = None,
    model: Any = None,
) -> Exchange:
    """Adds to a database the best record of every region that it lacks.

    Parameters
    ----------
    store : RecordStore
        Our records.
    folder : Path
        The database's folder, for `MetaScheduleApplyDatabase(work_dir)`.
    machine : str or None
        Export only records of this CPU (LLVM's name).
    threads : int or None
        Export only records of this number of threads.
    model : path, bytes, onnx.ModelProto, IRModule or None
        Also write entries for the programs that TVM's pipelines make of this model, each with the
        record of a region that has the same product.

    Returns
    -------
    Exchange
        `left_out` names the regions that a schedule cannot express, and why.

    Raises
    ------
    RecordError
        If the records are of several machines, instruction sets or numbers of threads: TVM looks up
        by program alone, and would apply the records of one to another. Or the folder is unusable.
    OutputError
        If the disk is full; what was added before stays.
    """
    best, result = _best(store, machine, threads)
    writer = DatabaseWriter(folder)
    for located in best:
        record = located.record
        forms = {
            "weights as they are": functools.partial(_tuning_record, record, False),
            "weights packed at compile time": functools.partial(_tuning_record, record, True),
        }
        _add(writer, record.workload, forms, result)
    for trace in _traces(store, machine, threads):
        _add(writer, trace.workload, {"": trace.tuning_record}, result)
    if model is None:
        return result
    # Each program of the model gets the fastest record of its product.
    records: dict[ProductKey, Record] = {}
    for located in sorted(best, key=lambda item: item.record.median_us):
        records.setdefault(product_key(located.record.region), located.record)
    for program, region in programs_of(model):
        fastest = records.get(product_key(region))
        if fastest is None:
            _leave_out(result, region.key, "no record of such a product")
            continue
        form = "packed at compile time" if knows_constants(program) else "as they are"
        make = functools.partial(tuning_record, fastest, program)
        _add(writer, region.key, {f"weights {form}": make}, result)
    return result


def _add(
    writer: DatabaseWriter,
    workload: str,
    forms: Mapping[str, Callable[[], TuningRecord]],
    result: Exchange,
) -> None:
    """Writes one record in all its forms, and notes in `result` what was written."""
    reasons: dict[str, str] = {}
    new = []
    for form, make in forms.items():
        try:
            new.append(writer.add(make()))
        except errors.OutputError:
            raise  # a full disk is no fault of the record
        except errors.TvmHybridError as error:
            reasons.setdefault(str(error), form)
    result.programs += sum(new)
    if not new:
        _leave_out(result, workload, "; ".join(reasons))
        return
    if not any(new):
        result.known += 1
    elif workload not in result.taken:
        result.taken.append(workload)
    result.partly += [(workload, f"{form}: {why}") for why, form in reasons.items()]


def _leave_out(result: Exchange, workload: str, reason: str) -> None:
    if (workload, reason) not in result.left_out:
        result.left_out.append((workload, reason))


def _best(
    store: RecordStore, machine: str | None, threads: int | None
) -> tuple[list[Located], Exchange]:
    """The best record of every region, and an Exchange that says which regions have none."""
    groups: dict[str, list[Located]] = {}
    kinds: set[tuple[str, str, int]] = set()
    result = Exchange()
    for located in store:
        record = located.record
        if machine not in (None, record.machine) or threads not in (None, record.threads):
            continue
        groups.setdefault(record.workload, []).append(located)
        kinds.add((record.machine, record.isa, record.threads))
    for trace in _traces(store, machine, threads):
        kinds.add((trace.machine, trace.isa, trace.threads))
    if len(kinds) > 1:
        names = ", ".join(f"{name} ({isa}, {count} threads)" for name, isa, count in sorted(kinds))
        raise errors.RecordError(
            f"records of {names}: TVM would mix them; choose by machine and threads"
        )
    best = []
    for workload, records in groups.items():
        # Only records of the current version of the template count.
        op = records[0].record.region.op
        here = (template_for(op).name, template_for(op).version) if has_template(op) else None
        current = [each for each in records if (each.record.template, each.record.version) == here]
        ranking = trusted(current)
        if ranking:
            best.append(ranking[0])
        else:
            reason = "no successful record" if current else "records of another template"
            result.left_out.append((workload, reason))
    return best, result


def _traces(store: RecordStore, machine: str | None, threads: int | None) -> Iterator[TraceRecord]:
    """The foreign traces in a store."""
    for trace, _ in traces_of(store):
        if machine in (None, trace.machine) and threads in (None, trace.threads):
            yield trace


def _tuning_record(record: Record, constants: bool) -> TuningRecord:
    return tuning_record(record, workload_of(record.region, constants))


# The programs that TVM's own pipelines make of a model, and the product in each.
#
# Our passes rewrite a model before they form regions (four operators around an erf become a gelu),
# so TVM's pipeline may not make a region's program from the same model. The product in both is
# equal, and so is the best way to compute it: a record serves every program with its product,
# whatever comes after the product.


ProductKey: TypeAlias = "tuple[str, tuple[Any, ...], tuple[tuple[str, Attribute], ...]]"


def product_key(region: Region) -> ProductKey:
    """A key that is equal for regions with the same product or convolution but other epilogues.

    The leading dimensions of a matmul's rows are multiplied together.
    """
    shapes = [tensor.shape for tensor in region.inputs]
    if region.op == "matmul" and "window" not in region.attrs:
        shapes[0] = (math.prod(shapes[0][:-1]), shapes[0][-1])
    dtypes = [tensor.dtype for tensor in region.inputs]
    return region.op, (*shapes, *dtypes), tuple(sorted(region.attrs.items()))


def programs_of(model: Any) -> list[tuple[IRModule, Region]]:
    """The programs of TVM's pipelines that are products or convolutions, with their regions.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or IRModule
        For a model that TVM imports, give the module that TVM makes of it.

    Raises
    ------
    ModelError
        If the model cannot be read.
    """
    mod = import_model(model, None).mod
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    simple = ir.transform.Sequential(passes)(mod)
    # The passes of `static_shape_tuning_pipeline(cpu_weight_prepack=True)`.
    free = relax.transform.AttachAttrLayoutFreeBuffers()(legalized(simple))
    found = []
    for prepared in (legalized(mod), free):
        for _, function in prepared.functions_items():
            if isinstance(function, tirx.PrimFunc):
                program = normalized(function)
                try:
                    found.append((program, region_of(program)))
                except errors.ConfigError:
                    continue  # no product
    return found


# Our record as TVM's tuning record and back: a trace, our times, and the record in an annotation.


def tuning_record(record: Record, program: IRModule) -> TuningRecord:
    """Converts a record to TVM's tuning record.

    Parameters
    ----------
    record : Record
        A successful record.
    program : IRModule
        A program with the product of the record's region.

    Raises
    ------
    TvmHybridError
        If no schedule expresses the record's configuration.
    """
    config = template_for(record.region.op).config_type.from_dict(record.config)
    schedule = Schedule(program)
    try:
        schedule_product(schedule, config)
        # Last, because after an annotation of the root TVM may confuse blocks of the trace.
        schedule.annotate(schedule.get_sblock("root"), ANNOTATION, note_of(record))
    except errors.TvmHybridError:
        raise
    except Exception as error:  # a schedule primitive of TVM that the program does not allow
        raise errors.ConfigError(f"TVM refuses the schedule: {first_line(error)}") from error
    trace = schedule.trace
    assert trace is not None  # a schedule keeps its trace by default
    return TuningRecord(
        trace.simplified(False),
        Workload(program),
        [time / MICROSECONDS for time in record.times_us],
        target_of(record),
        ArgInfo.from_prim_func(program["main"]),
    )


def note_of(record: Record) -> str:
    """The record as text that TVM's JSON can hold: one line of ASCII."""
    text = record.to_line().decode().strip()
    return re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text)


def target_of(record: Record) -> Target:
    """TVM's target for the machine that a record was measured on.

    Raises
    ------
    ConfigError
        If TVM does not know the machine.
    """
    description = {"kind": "llvm", "mcpu": record.machine, "num-cores": record.threads}
    try:
        return resolve_target(description)
    except errors.TargetError as error:
        raise errors.ConfigError(f"the machine {record.machine}: {error}") from error


def own_record(entry: Entry) -> Record | None:
    """The record that our export stored in an entry; None for a foreign trace.

    If MetaSchedule has measured the trace since, the record has MetaSchedule's times and machine.

    Raises
    ------
    RecordError
        If the stored record is damaged.
    """
    note = entry.note
    if note is None:
        return None
    record = Record.from_line(note.encode())
    if record.workload != record.region.key:
        raise errors.RecordError("a damaged record of ours: its key is not that of its region")
    measured = [seconds * MICROSECONDS for seconds in entry.seconds]
    same = len(measured) == len(record.times_us) and all(
        map(functools.partial(math.isclose, rel_tol=1e-9), measured, record.times_us)
    )
    if measured and not same:
        return msgspec.structs.replace(
            record,
            times_us=measured,
            baseline_us=None,
            confirmed=None,
            machine=str(entry.target.get("mcpu") or record.machine),
        )
    return record


def import_records(folder: Path, store: RecordStore, known: Sequence[Region] = ()) -> Exchange:
    """Adds to a store those records of a database that it lacks.

    Parameters
    ----------
    folder : Path
        With the database's two files.
    store : RecordStore
        Appended to.
    known : sequence of Region
        Regions, such as a model's, that are compared with a foreign program first.

    Returns
    -------
    Exchange
        `left_out` names every line that could not be used.

    Raises
    ------
    RecordError
        If the database cannot be read or the store not be written.
    """
    database = MetaScheduleFolder(folder)
    result = Exchange()
    for problem in database.problems:
        place, _, reason = problem.partition(": ")
        result.left_out.append((place, reason))
    present = {located.record.to_line() for located in store}
    present |= {record.to_line() for record, _ in traces_of(store)}
    programs = _Programs(database, known)
    seen: set[bytes] = set()
    for entry in database.entries:
        try:
            own = own_record(entry)
            record = own or trace_record(entry, *programs.of(entry))
        except TvmHybridError as error:
            result.left_out.append((entry.place, str(error)))
            continue
        line = record.to_line()
        if line in seen:  # two forms of one program hold equal records
            continue
        seen.add(line)
        if line in present:
            result.known += 1
            continue
        store.append(record)
        result.foreign += own is None
        result.taken.append(record.workload)
    return result


class _Programs:
    """The programs of a database and their regions, each computed once."""

    def __init__(self, database: MetaScheduleFolder, known: Sequence[Region]) -> None:
        self.database, self.known = database, known
        self.found: dict[int, tuple[IRModule, Region] | TvmHybridError] = {}

    def of(self, entry: Entry) -> tuple[IRModule, Region]:
        """An entry's program and region.

        Raises
        ------
        RecordError
            If the program cannot be read.
        ConfigError
            If the program is no region of ours.
        """
        if entry.workload not in self.found:
            try:
                program = self.database.program(entry)
                self.found[entry.workload] = program, region_of(program, self.known)
            except (RecordError, ConfigError) as error:
                self.found[entry.workload] = error
        found = self.found[entry.workload]
        if isinstance(found, TvmHybridError):
            raise found
        return found
