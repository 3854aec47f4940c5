"""Makes docs/performance.md, the README's table and its picture from the surveys in docs/measured.

Nothing between the markers is typed by hand. Older figures stand between
`<!-- until measured: CPU -->` and `<!-- end of CPU -->`: they are removed as soon as there is a
survey of that CPU. Without any survey, pages stay unchanged.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tools import speed_picture
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS
from tvm_hybrid.report.timing import markdown_table

from .sections import SECTIONS
from .store import BUSY, FOLDER, ROOT, Result, Row, Survey, newest, shortfalls

PERFORMANCE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
INTRODUCTION = """\
How fast tvm_hybrid is beside ONNX Runtime, OpenVINO, oneDNN and other libraries. A ratio is the
time of the best other library over ours: above 1, we are faster. Times are the least of many calls
in turns. [Compile times](compile_times.md) and [scaling by threads](scaling.md) have their own
pages."""
CONTENTS = """\
Each CPU of the table has a chapter: its peaks, every measured case, and the cases that fall short.
`python -m tools.survey` measures a CPU, and makes these chapters from its files in `docs/measured`.
Older measurements, of other CPUs too, follow after these chapters."""
LISTED = 4  # most cases listed among those without time
_OLD = r"<!-- until measured: {cpu} -->.*?<!-- end of {cpu} -->\n?"
BESIDE = ("products", "perceptrons", "attention", "models", "dynamic", "decoding")
"""Sections that compare other libraries' times with ours."""


def update(path: Path, surveys: Sequence[Survey], text: Callable[[Sequence[Survey]], str]) -> str:
    """The text that a page should have; ValueError if it has no place for the measurements."""
    page = path.read_text()
    if not surveys:
        return page
    if BEGIN not in page or END not in page:
        raise ValueError(f"{path.name} has no lines {BEGIN} and {END}")
    for survey in surveys:
        page = re.sub(_OLD.format(cpu=re.escape(survey.cpu)), "", page, flags=re.DOTALL)
    before, _, behind = page.partition(BEGIN)
    behind = behind.partition(END)[2]
    return f"{before}{BEGIN}\n{text(surveys).strip()}\n{END}{behind}"


def pages(folder: Path = FOLDER) -> dict[Path, str]:
    """The text of every page, from the newest survey of each CPU."""
    surveys = newest(folder)
    return {
        PERFORMANCE: update(PERFORMANCE, surveys, performance_text),
        README: update(README, surveys, readme_text),
    }


def performance_text(surveys: Sequence[Survey]) -> str:
    """The tables of all sections of all CPUs."""
    lines = [INTRODUCTION, *summary(surveys), "", CONTENTS]
    for survey in surveys:
        lines += ["", f"## {title(survey)}", "", *about(survey)]
        for name, found in survey.sections.items():
            if name in SECTIONS:
                lines += [
                    "",
                    f"### {SECTIONS[name].title}: {survey.cpu}",
                    *section_text(name, found),
                ]
        short = shortfalls(survey.rows)
        lines += ["", f"### What falls short: {survey.cpu}", ""]
        lines += [f"- {each}" for each in short] or ["Nothing."]
    return "\n".join(lines)


def summary(surveys: Sequence[Survey]) -> list[str]:
    """A table of every CPU's geometric means and shortfalls, with links to their sections."""
    lines = []
    for survey in surveys:
        cpu = survey.cpu
        for name, ratios in comparisons(survey).items():
            heading = SECTIONS[name].title
            lines.append([f"[{heading}](#{anchor(f'{heading}: {cpu}')})", cpu, ratios])
        count, link = len(shortfalls(survey.rows)), anchor(f"What falls short: {cpu}")
        short = f"{count} case{'s' * (count > 1)}" if count else "nothing"
        lines.append([f"[What falls short](#{link})", cpu, short])
    return markdown_table(["measured", "CPU", "ratio, geometric mean (least)"], lines)


def anchor(heading: str) -> str:
    """The anchor of a heading, on the site and on the forge."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def comparisons(survey: Survey) -> dict[str, str]:
    """Section -> its geometric means for each number of threads, if it compares libraries."""
    found = {}
    for name in BESIDE:
        rows, texts = survey.sections.get(name, Result()).rows, []
        for count in sorted({row.threads for row in rows}):
            mean = mean_of(row for row in rows if row.threads == count)
            texts += [f"{threads_text(count)} {mean}"] if mean else []
        if texts:
            found[name] = "; ".join(texts)
    return found


def title(survey: Survey) -> str:
    """The heading of a CPU."""
    return f"{survey.processor} ({survey.cpu})"


def versions_of(survey: Survey) -> list[str]:
    """The versions of the libraries in the picture."""
    names = {ONNX_RUNTIME: "onnxruntime", OPENVINO: OPENVINO}
    return [f"{name} {survey.versions.get(key, '')}".strip() for name, key in names.items()]


def about(survey: Survey) -> list[str]:
    """Lines that say when and with what a survey was measured, and what is missing."""
    versions = ", ".join(f"{name} {version}" for name, version in survey.versions.items())
    what = f"{survey.date}, commit {survey.commit}, {threads_text(survey.threads)} at most"
    lines = [f"{what}; {versions}."]
    if survey.load > BUSY:
        lines.append(f"The machine was busy (load {survey.load:.1f}): times say little.")
    lines += [f"Missing: {name} ({why})." for name, why in survey.missing.items()]
    absent = [name for name in SECTIONS if name not in survey.sections]
    return lines + ([f"Not measured: {', '.join(absent)}."] if absent else [])


def section_text(name: str, found: Result) -> list[str]:
    """The tables of a section, then its notes, faults and cases without time."""
    table = {"products": by_type, "perceptrons": by_type, "attention": by_type}
    table |= {"kernels": tiles, "models": by_peer, "dynamic": by_peer, "decoding": by_peer}
    lines = [*table.get(name, figures)(found.rows), *means(found.rows)]
    noted = [f"{row.case}, {who}: {why}" for row in found.rows for who, why in row.notes.items()]
    faults = [f"{case or 'the section'}: {why}" for case, why in found.faults.items()]
    lines += [""] * bool(noted or faults) + [f"- {each}" for each in dict.fromkeys(faults + noted)]
    if found.left_out:
        some, more = found.left_out[:LISTED], len(found.left_out) - LISTED
        rest = f"; and {more} more" if more > 0 else ""
        lines += ["", f"No time was left for {'; '.join(some)}{rest}."]
    return lines


def duration(value: float) -> str:
    """Microseconds or milliseconds, with three digits."""
    if value >= 9999.5:
        return f"{value / 1000:.3g} ms" if value < 999500 else f"{value / 1000:.0f} ms"
    return f"{value:.0f} us" if value >= 999.5 else f"{value:.3g} us"


def cell(row: Row | None) -> str:
    """Our time and the ratio to the best other library."""
    if row is None or OURS not in row.values:
        return ""
    ratio = "" if row.ratio is None else f", {row.ratio:.2f}x"
    return duration(row.values[OURS]) + ratio


def threads_text(count: int) -> str:
    """The number of threads in words."""
    return "one thread" if count == 1 else f"{count} threads"


def by_type(rows: Sequence[Row]) -> list[str]:
    """A table with a row for each case, and a column for each type and number of threads."""
    columns = list(dict.fromkeys((row.dtype, row.threads) for row in rows))
    found = {(row.case, row.dtype, row.threads): row for row in rows}
    head = ["", *(f"{dtype}, {threads_text(threads)}" for dtype, threads in columns)]
    cases = dict.fromkeys(row.case for row in rows)
    lines = [[case, *(cell(found.get((case, *column))) for column in columns)] for case in cases]
    return markdown_table(head, lines)


def by_peer(rows: Sequence[Row]) -> list[str]:
    """A table with a row for each case and number of threads: our time, and others' over ours."""
    others = list(dict.fromkeys(name for row in rows for name in row.values if name != OURS))
    lines = []
    for row in rows:
        ours = row.values.get(OURS)
        ratios = [
            f"{row.values[name] / ours:.2f}x" if ours and name in row.values else ""
            for name in others
        ]
        lines.append([row.case, threads_text(row.threads), duration(ours) if ours else "", *ratios])
    return markdown_table(["", "", OURS, *others], lines)


def tiles(rows: Sequence[Row]) -> list[str]:
    """A table of microkernels by their types, with their fractions of the peak."""
    lines = []
    for types in dict.fromkeys(row.dtype for row in rows):
        mine = [row for row in rows if row.dtype == types]
        shares = (f"{row.case} {row.values['share']:.0%}" for row in mine)
        most = max(row.values["speed"] / row.values["share"] for row in mine)
        lines.append([types, f"{most:.0f} GOP/s", ", ".join(shares)])
    return markdown_table(["types", "peak", "share of it"], lines)


def figures(rows: Sequence[Row]) -> list[str]:
    """A table with a row for each case, and a column for each figure."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    head = ["", "", *names, "unit"]
    lines = []
    for row in rows:
        values = (f"{row.values[name]:g}" if name in row.values else "" for name in names)
        lines.append([row.case, threads_text(row.threads), *values, row.unit])
    return markdown_table(head, lines)


def mean_of(rows: Iterable[Row]) -> str:
    """The geometric mean of the ratios, and the least; empty if there are none."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if not ratios:
        return ""
    return f"{statistics.geometric_mean(ratios):.2f}x ({min(ratios):.2f}x)"


def means(rows: Sequence[Row]) -> list[str]:
    """A line with geometric means by type and number of threads."""
    texts = []
    for dtype, threads in dict.fromkeys((row.dtype, row.threads) for row in rows):
        mean = mean_of(row for row in rows if (row.dtype, row.threads) == (dtype, threads))
        what = f"{dtype}, " * bool(dtype) + threads_text(threads)
        texts += [f"{what} {mean}"] if mean else []
    return ["", f"Geometric means (least): {'; '.join(texts)}."] if texts else []


def readme_text(surveys: Sequence[Survey]) -> str:
    """The caption of the README's picture, and a table with geometric means of every CPU."""
    drawn, caption, lines = speed_picture.shown_survey(surveys), "", []
    if drawn is not None:
        peers = " or ".join(versions_of(drawn))
        caption = f"Each bar is the time of {peers} over ours on one thread of {title(drawn)}: "
        caption += "the same precision, calls in turns, least times."
    for survey in surveys:
        found = comparisons(survey)
        lines += [[SECTIONS[name].title, survey.cpu, ratios] for name, ratios in found.items()]
    head = ["measured", "CPU", "the best other library's time over ours, geometric mean (least)"]
    return "\n".join([caption, *markdown_table(head, lines)])


def write_pages() -> list[Path]:
    """Writes outdated pages and the picture if it is outdated; returns the files it wrote."""
    old = [(path, text) for path, text in pages().items() if path.read_text() != text]
    for path, text in old:
        path.write_text(text)
    written = [path for path, _ in old]
    rows, picture = speed_picture.shown_rows(), speed_picture.PICTURE
    if speed_picture.fingerprint(rows) not in picture.read_text():
        speed_picture.draw(rows, picture)
        written.append(picture)
    return written
