"""The survey: its sections, its file, and the pages made from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner

from tools import speed_picture
from tools.compile_times.feeds import feeds_of
from tools.decoding import environments
from tools.decoding.environments import cpus_for
from tools.survey import __main__ as command
from tools.survey import page, peers, race, worker
from tools.survey.defaults import REGIONS, nearest
from tools.survey.peers import OneDnn, Peers
from tools.survey.run import Run
from tools.survey.section import Case, Job, Section, measure_cases, one_thread
from tools.survey.sections import SECTIONS
from tools.survey.store import (
    GAIN,
    ONEDNN,
    Result,
    Row,
    Survey,
    file_for,
    newest,
    read,
    resumed,
    shortfalls,
    write,
)
from tools.survey.workloads import DTYPES, Workload, workloads
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS
from tvm_hybrid.report.timing import ContestantError

NOBODY = Peers(openvino="", onednn="", versions={"numpy": "2"}, missing={OPENVINO: "no network"})


def empty(cpu: str = "znver9", date: str = "2026-11-30", commit: str = "abc") -> Survey:
    return Survey(
        cpu=cpu,
        processor="A CPU",
        threads=2,
        date=date,
        commit=commit,
        load=0.1,
        versions={"numpy": "2", "onnxruntime": "1.32"},
        missing={ONEDNN: "no compiler"},
    )


def beside(case: str, ours: float, theirs: float, **fields: Any) -> Row:
    return Row(case=case, values={OURS: ours, ONNX_RUNTIME: 2 * theirs, OPENVINO: theirs}, **fields)


def fake(name: str, *measures: Callable[[], Iterable[Row]], minutes: float = 1.0) -> Section:
    cases = [Case(f"case {at}", measure) for at, measure in enumerate(measures)]
    return Section(name, name.title(), minutes, lambda job: cases, one_thread)


def run_of(path: Path, *sections: Section, survey: Survey | None = None) -> Run:
    """Runs sections in this process."""
    by_name = {section.name: section for section in sections}

    def measure(job: Job, report: Callable[[str, Result], object]) -> Result:
        return measure_cases(by_name[job.section].cases(job), job.seconds, report)

    lines: list[str] = []
    return Run(survey or empty(), path, NOBODY, by_name, lines.append, measure)


def test_each_section_is_kept_as_it_ends(tmp_path: Path) -> None:
    path, kept = tmp_path / "a.json", []

    def look() -> Iterator[Row]:
        kept.extend(read(path).sections)
        yield Row(case="one", values={"peak": 1.0})

    one = fake("one", lambda: [Row(case="x", values={"peak": 2.0})])
    run_of(path, one, fake("two", look)).go(["one", "two"], 60)
    assert kept == ["one"]
    found = read(path)
    assert list(found.sections) == ["one", "two"]
    assert found.sections["one"].rows == [Row(case="x", values={"peak": 2.0})]
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_second_start_goes_on_where_the_first_was_interrupted(tmp_path: Path) -> None:
    path, calls = tmp_path / "a.json", []

    def count(name: str) -> Iterator[Row]:
        calls.append(name)
        yield Row(case=name)

    def interrupted() -> Iterator[Row]:
        yield Row(case="half")
        raise KeyboardInterrupt

    one, three = fake("one", lambda: count("one")), fake("three", lambda: count("three"))
    first = run_of(path, one, fake("two", interrupted), three)
    with pytest.raises(KeyboardInterrupt):
        first.go(first.missing(), 60)
    assert list(read(path).sections) == ["one"]
    survey, reason = resumed(path, empty())
    assert reason == "a.json has 1 sections"
    again = run_of(path, one, fake("two", lambda: count("two")), three, survey=survey)
    again.go(again.missing(), 60)
    assert calls == ["one", "two", "three"]
    assert list(read(path).sections) == ["one", "two", "three"]
    assert run_of(path, one, survey=read(path)).missing() == []


def test_a_torn_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "znver9-2026-11-30.json"
    write(path, empty())
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2])
    with pytest.raises(ValueError, match="holds no survey"):
        newest(tmp_path)
    assert file_for(empty(), tmp_path) == path
    survey, reason = resumed(path, empty())
    assert survey.sections == {} and "torn" in reason
    assert not path.exists()
    assert path.with_suffix(".torn").read_bytes() == text[: len(text) // 2]
    assert newest(tmp_path) == []


def test_a_file_is_continued_only_by_the_same_source(tmp_path: Path) -> None:
    assert file_for(empty(), tmp_path).name == "znver9-2026-11-30.json"
    write(tmp_path / "znver9-2026-11-28.json", empty(date="2026-11-28", commit="old"))
    assert file_for(empty(), tmp_path).name == "znver9-2026-11-30.json"
    write(tmp_path / "znver9-2026-11-29.json", empty(date="2026-11-29"))
    assert file_for(empty(), tmp_path).name == "znver9-2026-11-29.json"  # past midnight


def test_a_failing_case_does_not_end_its_section(tmp_path: Path) -> None:
    def fails() -> Iterator[Row]:
        yield Row(case="before")
        raise ValueError("first line\nno such kernel")

    path = tmp_path / "a.json"
    after = fake("after", lambda: [Row(case="fine")])
    run_of(path, fake("bad", fails, lambda: [Row(case="next")]), after).go(["bad", "after"], 60)
    bad = read(path).sections["bad"]
    assert bad.faults == {"case 0": "ValueError: no such kernel"}
    assert [row.case for row in bad.rows] == ["before", "next"]
    assert [row.case for row in read(path).sections["after"].rows] == ["fine"]


def test_cases_without_time_are_named(tmp_path: Path) -> None:
    def slow() -> Iterator[Row]:
        time.sleep(0.02)
        yield Row(case="slow")

    path = tmp_path / "a.json"
    second = fake("second", lambda: [Row(case="quick")], minutes=100)
    run_of(path, fake("first", slow, slow), second).go(["first", "second"], 1.0)
    found = read(path).sections
    assert found["first"].left_out == ["case 1"] and found["first"].seconds >= 0
    assert run_of(path, fake("first"), second, survey=read(path)).missing() == ["first"]
    assert [row.case for row in found["second"].rows] == ["quick"]


def test_a_section_runs_in_a_process_of_its_own() -> None:
    reported: list[str] = []
    job = Job(section="calls", seconds=60, cpus=cpus_for(1))
    found = worker.measured(job, lambda case, _: reported.append(case))
    assert reported == ["call"] and not found.faults
    (row,) = found.rows
    assert set(row.values) == {f"{OURS}, Executable.run", OURS, ONNX_RUNTIME}
    assert all(0 < value < 1e5 for value in row.values.values())


def test_a_process_that_dies_is_a_fault() -> None:
    found = worker.measured(Job(section="no such section", seconds=60), lambda *_: None)
    assert "KeyError" in found.faults[""] and not found.rows


def test_a_process_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE", 0.0)
    of_module, sleeping = worker.ChildProcess.of_module, ["import time; time.sleep(60)"]
    hanging = staticmethod(lambda *given: of_module("timeit", sleeping, given[-1]))
    monkeypatch.setattr(worker.ChildProcess, "of_module", hanging)
    found = worker.measured(Job(section="peaks", seconds=0.0), lambda *_: None)
    assert "not done" in found.faults[""]


def test_sections_fit_into_40_minutes() -> None:
    assert sum(section.minutes for section in SECTIONS.values()) == 40 >= command.MINUTES + 2
    wanted = "peaks calibrate kernels products perceptrons attention models dynamic decoding"
    assert set(SECTIONS) == {*wanted.split(), "calls", "compiling", "defaults"}
    for section in SECTIONS.values():
        names = [case.name for case in section.cases(Job(section=section.name))]
        assert names and len(names) == len(set(names))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "sizes"), [("matmul", (3, 16, 8)), ("mlp", (3, 16, 8, 4)), ("mha", (2, 8, 16, 2))]
)
def test_workloads_compute_what_they_say(kind: str, sizes: tuple[int, ...], dtype: str) -> None:
    model = Workload(kind, dtype, sizes, "").model()
    feeds = feeds_of(model)
    assert list(feeds) == [info.name for info in model.proto.graph.input]
    if dtype == "bf16":
        assert {feed.dtype.name for feed in feeds.values()} == {"bfloat16"}
        return
    session = onnxruntime.InferenceSession(model.proto.SerializeToString())
    (result,) = session.run(None, feeds)
    assert result.shape == ((2, 8, 16) if kind == "mha" else (3, sizes[-1]))
    assert np.ptp(result.astype(np.float32)) > 0
    if (kind, dtype) == ("mha", "f32"):
        q, k, v = (feeds[name].reshape(2, 8, 2, 8).transpose(0, 2, 1, 3) for name in "qkv")
        scores = np.exp(q @ k.transpose(0, 1, 3, 2) / 8**0.5)
        wanted = scores / scores.sum(-1, keepdims=True) @ v
        assert np.allclose(result, wanted.transpose(0, 2, 1, 3).reshape(2, 8, 16), atol=1e-5)


def test_workloads_have_all_types() -> None:
    for kind, count in (("matmul", 10), ("mlp", 10), ("mha", 4)):
        found = workloads(kind)
        assert len(found) == len({(each.label, each.dtype) for each in found}) == 3 * count


def test_neighbours_differ_in_one_field_nearest_first() -> None:
    class Fields:
        def __init__(self, **fields: Any) -> None:
            self.fields = fields

        def to_dict(self) -> dict[str, Any]:
            return self.fields

    default = Fields(rows=8, columns=32)
    space = [Fields(rows=a, columns=b) for a in (1, 4, 8, 16) for b in (32, 64)]
    found = [each.fields for each in nearest(default, space)]  # type: ignore[arg-type]
    assert found == [
        {"rows": 4, "columns": 32},
        {"rows": 8, "columns": 64},
        {"rows": 16, "columns": 32},
        {"rows": 1, "columns": 32},
    ]
    assert len(REGIONS) == 12


def test_onednn_states_why_it_fails(tmp_path: Path) -> None:
    program = tmp_path / "peer"
    program.write_text('#!/bin/sh\necho \'{"error": "no such type"}\'\n')
    program.chmod(0o755)
    with pytest.raises(ContestantError, match="oneDNN: no such type"):
        OneDnn(str(program), ["matmul", "f64", "1", "1", "1"], 1)
    program.write_text("#!/bin/sh\necho '{\"ready\": 1}'\nread x\necho '{\"times\": [0.5]}'\n")
    contestant = OneDnn(str(program), ["matmul", "f32", "1", "1", "1"], 1)
    assert contestant.run_for(0.1) == [0.5]
    with pytest.raises(ContestantError, match="the process ended with code 0"):
        contestant.run_for(0.1)
    contestant.close()


def test_unavailable_peers_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peers.PYTHON_VARIABLE, str(tmp_path / "nowhere" / "python"))
    for module in (peers, environments):
        monkeypatch.setattr(module, "environment_with", lambda *_: str(tmp_path / "nothing"))
    (tmp_path / "without").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "without"))
    found = peers.prepare_peers(tmp_path)
    assert found.openvino == found.onednn == ""
    assert "python" in found.missing[OPENVINO] and "g++" in found.missing[ONEDNN]
    assert found.versions["onnxruntime"] == onnxruntime.__version__


def full(cpu: str = "znver9", date: str = "2026-11-30") -> Survey:
    """A survey with an entry of each kind."""
    survey = empty(cpu, date)
    survey.sections = {
        "peaks": Result(rows=[Row(case="f32", unit="GOP/s", values={"peak": 118.0})]),
        "kernels": Result(
            rows=[Row(case="tile", dtype="a x b", values={"speed": 90.0, "share": 0.9})]
        ),
        "products": Result(
            rows=[
                beside("1x2x3", 20.0, 30.0, dtype="f32"),
                beside("1x2x3", 12345.0, 1234.5, dtype="int8"),
                beside("1x2x3", 10.0, 12.0, dtype="f32", threads=2),
            ],
            faults={"4x5x6, f32": "ValueError: no"},
            left_out=["7x8x9, f32"],
        ),
        "models": Result(rows=[beside("a model", 1000.0, 1500.0)]),
        "defaults": Result(rows=[Row(case="a region", unit="x", values={GAIN: 1.25})]),
    }
    return survey


def test_shortfalls_are_listed_worst_first() -> None:
    assert shortfalls(full().rows) == [
        f"products: 1x2x3, int8, one thread: 0.10x of {OPENVINO}",
        "defaults: a region, one thread: a neighbour of the default is 1.25x as fast",
    ]
    missing = Row(case="alone", values={OURS: 1.0}, notes={OPENVINO: "fails"})
    assert missing.ratio is None and shortfalls([("products", missing)]) == []


def test_pages_are_made_of_the_newest_survey_of_each_cpu(tmp_path: Path) -> None:
    for survey in (full(date="2026-01-01"), full(), full("atom", "2026-10-10")):
        write(tmp_path / f"{survey.cpu}-{survey.date}.json", survey)
    found = newest(tmp_path)
    assert [(each.cpu, each.date) for each in found] == [
        ("znver9", "2026-11-30"),
        ("atom", "2026-10-10"),
    ]
    text = page.performance_text(found)
    for line in (
        "| [Models](#models-znver9) | znver9 | one thread 1.50x (1.50x) |",
        "| [What falls short](#what-falls-short-znver9) | znver9 | 2 cases |",
        "2026-11-30, commit abc, 2 threads at most; numpy 2, onnxruntime 1.32.",
        f"Missing: {ONEDNN} (no compiler).",
        "Not measured: calibrate, calls, perceptrons, attention, dynamic, decoding, compiling.",
        "|  | f32, one thread | int8, one thread | f32, 2 threads |",
        "| 1x2x3 | 20 us, 1.50x | 12.3 ms, 0.10x | 10 us, 1.20x |",
        "Geometric means (least): f32, one thread 1.50x (1.50x); int8, one thread 0.10x (0.10x); "
        "f32, 2 threads 1.20x (1.20x).",
        "- 4x5x6, f32: ValueError: no",
        "No time was left for 7x8x9, f32.",
        "| a x b | 100 GOP/s | tile 90% |",
        "| a model | one thread | 1000 us | 3.00x | 1.50x |",
        "- defaults: a region, one thread: a neighbour of the default is 1.25x as fast",
    ):
        assert line in text.splitlines(), line
    readme = page.readme_text(found)
    assert f"{ONNX_RUNTIME} 1.32 or {OPENVINO} over ours on one thread of A CPU (znver9)" in readme
    assert "| Models | znver9 | one thread 1.50x (1.50x) |" in readme.splitlines()
    (bar,) = speed_picture.survey_rows(found[0])
    assert (bar.model, bar.onnx_runtime, bar.openvino) == ("a model", 3.0, 1.5)


def test_hand_written_text_goes_when_its_cpu_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    old = [f"<!-- until measured: {cpu} -->\n## {cpu}\nby hand\n<!-- end of {cpu} -->\n"
           for cpu in ("znver9", "znver99")]  # fmt: skip
    path.write_text(f"# Speed\n\n{page.BEGIN}\nold\n{page.END}\n\n{old[0]}{old[1]}## Rest\n")
    assert page.update(path, [], page.performance_text) == path.read_text()
    made = page.update(path, [full()], lambda surveys: "new")
    assert made == f"# Speed\n\n{page.BEGIN}\nnew\n{page.END}\n\n{old[1]}## Rest\n"
    path.write_text("# Speed\n")
    with pytest.raises(ValueError, match=r"page\.md has no lines"):
        page.update(path, [full()], page.performance_text)


def test_a_busy_machine_is_mentioned() -> None:
    survey = empty()
    assert not [line for line in page.about(survey) if "busy" in line]
    survey.load = 3.0
    assert "The machine was busy (load 3.0): times say little." in page.about(survey)


class Fixed:
    """A contestant with one time per call in its first turn, and another time in later turns."""

    def __init__(self, first: float, later: float) -> None:
        self.times = [first, *[later] * 100]

    def run_for(self, _seconds: float) -> list[float]:
        return [self.times.pop(0)]


def test_a_row_that_falls_short_is_measured_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "ROUNDS", 1)
    job = Job(section="products")
    row = race._measured("x", {OURS: Fixed(9, 2), OPENVINO: Fixed(3, 4)}, job)
    assert row.values == {OURS: 2e6, OPENVINO: 3e6} and row.ratio == 1.5
    row = race._measured("x", {OURS: Fixed(2, 1), OPENVINO: Fixed(3, 4)}, job)
    assert row.values == {OURS: 2e6, OPENVINO: 3e6}
    row = race._measured("x", {OURS: Fixed(9, 9), OPENVINO: Fixed(3, 1)}, job)
    assert row.values == {OURS: 9e6, OPENVINO: 1e6}


def test_pages_have_a_place_for_what_is_measured() -> None:
    for path in (page.PERFORMANCE, page.README):
        assert "survey of a CPU" in page.update(path, [empty()], lambda _: "survey of a CPU")


def test_pages_are_up_to_date() -> None:
    """`python -m tools.survey --pages` makes them."""
    for path, text in page.pages().items():
        assert path.read_text() == text, f"{path.name} is old: python -m tools.survey --pages"


def test_the_command_ends_with_the_shortfalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(_run: Run, section: Section, _seconds: float) -> Result:
        return Result(rows=[beside(f"slow {section.name}", 2.0, 1.0)])

    monkeypatch.setattr(command, "prepare_peers", lambda: NOBODY)
    monkeypatch.setattr(Run, "measured", measured)
    monkeypatch.setattr(command, "source_state", lambda: "abc")
    path = tmp_path / "a.json"
    arguments = ["--only", "calls", "--output", str(path)]
    ran = CliRunner().invoke(command.main, arguments)
    assert ran.exit_code == 0, ran.output
    assert f"calls: slow calls, one thread: 0.50x of {OPENVINO}" in ran.output
    assert f"missing: {OPENVINO}: no network" in ran.output
    assert list(read(path).sections) == ["calls"]
    ran = CliRunner().invoke(command.main, ["--output", str(path)])  # what is missing
    assert ran.exit_code == 0 and set(read(path).sections) == set(SECTIONS)
    monkeypatch.setattr(command, "source_state", lambda: "def")
    ran = CliRunner().invoke(command.main, arguments)
    assert ran.exit_code == 1 and "--anew" in ran.output
    assert set(read(path).sections) == set(SECTIONS)
    ran = CliRunner().invoke(command.main, [*arguments, "--anew"])
    assert ran.exit_code == 0 and list(read(path).sections) == ["calls"]
