"""What `doctor` reports about AMX, for each answer of Linux, and about places for threads."""

from __future__ import annotations

import ast
import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest

from microkernels.amx import permission as amx_permission
from microkernels.amx.permission import Permission
from microkernels.isa import host_isa, isa_named
from microkernels.machines.host import MACHINE_VARIABLE
from tests.tvm_hybrid.runtime.simulated_machines import two_sockets
from tests.tvm_hybrid.runtime.test_weights import Recorded
from tvm_hybrid.cli.machine import OK, VARIABLES, WARNING, examine, places
from tvm_hybrid.runtime import weights

ROOT = Path(__file__).parents[3]
PACKAGES = ("microkernels", "tir_schedules", "relay_passes", "tvm_hybrid")
# Variables that are set briefly while TVM is imported; users do not set them.
INTERNAL = {"TVM_DEVICE_BACKEND_AUTOLOAD"}

LINES = [
    (Permission("absent"), "none on this CPU", OK),
    (Permission("granted"), "usable: Linux has granted AMX tile data to this process", OK),
    (Permission("emulated"), "usable: AMX is emulated in this process", OK),
    (Permission("denied", errno.ENOSPC), "Linux denies AMX tile data", WARNING),
]


@pytest.mark.parametrize(("permission", "text", "state"), LINES)
def test_amx_has_a_line(
    permission: Permission, text: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amx_permission, "tile_permission", lambda: permission)
    (fact,) = [fact for fact in examine() if fact.name == "AMX"]
    assert fact.topic == "cpu" and fact.state == state
    assert fact.value.startswith(text)
    if state == WARNING:
        for detail in ("ENOSPC", "sigaltstack", "code for this machine"):
            assert detail in fact.value


def test_places_are_listed_by_the_names_that_threads_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = two_sockets(tmp_path, memory="0-1")
    calls = Recorded()
    monkeypatch.setattr(weights, "LinuxCalls", lambda: calls)
    facts = {fact.name: fact.value for fact in places(topology)}
    assert facts == {
        "sockets": "socket:0: CPUs 0-1,4-5; socket:1: CPUs 2-3,6-7",
        "nodes": "node:0: CPUs 0-1,4-5; node:1: CPUs 2-3,6-7",
        "share a last-level cache": "0-1,4-5; 2-3,6-7",
        "memory nodes": "0, 1: weights can be placed",
        "CPUs of threads='all'": "0-3, one a core",
    }
    calls.most = 0
    (refused,) = [fact for fact in places(topology) if fact.state == WARNING]
    assert refused.value == "0, 1: Operation not permitted"
    alone = replace(topology, memory_nodes=(0,))
    assert "0: weights stay where they are" in {fact.value for fact in places(alone)}


def test_what_is_guessed_of_a_description_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fact,) = [fact for fact in examine() if fact.name == "guessed in it"]
    path = tmp_path / "mine.json"
    guess = '{"value": 3000, "kind": "guess", "source": "nobody knows"}'
    path.write_text(
        f'{{"title": "mine", "inherits": "znver4", "numbers": {{"clock_256": {guess}}}}}'
    )
    monkeypatch.setenv(MACHINE_VARIABLE, str(path))
    (mine,) = [fact for fact in examine() if fact.name == "guessed in it"]
    assert mine.value != fact.value and "clock_256" in mine.value
    assert "tile_product" not in mine.value or host_isa().includes(isa_named("amx"))
    path.write_text(path.read_text().replace('"guess"', '"measured"'))
    (mine,) = [fact for fact in examine() if fact.name == "guessed in it"]
    assert "clock_256" not in mine.value


def test_every_variable_is_on_the_page() -> None:
    page = (ROOT / "docs/environment.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(VARIABLES)


def test_every_variable_that_is_read_is_listed() -> None:
    """Each variable's name is a complete string literal somewhere in the sources."""
    texts = {
        node.value
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = {text for text in texts if re.fullmatch(r"(TVM|OMP)_[A-Z_]+", text)}
    assert named - INTERNAL == set(VARIABLES)


def test_doctor_shows_every_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_BIND_THREADS", "0")
    facts = {fact.name: fact.value for fact in examine() if fact.topic == "environment"}
    assert facts.keys() == VARIABLES.keys()
    assert facts["TVM_BIND_THREADS"].startswith("0: 0: workers are not bound")
