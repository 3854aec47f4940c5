"""The snippet of docs/tensorization.md runs."""

from __future__ import annotations

import re
from typing import Any

from microkernels.registry import microkernel_named
from tests.tvm_hybrid.small_models import ROOT

PAGE = ROOT / "docs" / "tensorization.md"


def test_the_page() -> None:
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 1
    exec(compile(snippets[0], str(PAGE), "exec"), names)
    assert microkernel_named(names["fast"].attrs["tvm_hybrid.kernel"]).b_dtype == "float32"
    reason = names["decisions"][0].reason
    assert reason.startswith("batches h, rows i, columns j, steps d; nothing copied; ")
