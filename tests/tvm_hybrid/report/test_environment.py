"""What `doctor` says of AMX: one line for each answer of Linux."""

from __future__ import annotations

import errno

import pytest

from microkernels.amx import permission as amx_permission
from microkernels.amx.permission import Permission
from tvm_hybrid.report.environment import OK, WARNING, examine

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
