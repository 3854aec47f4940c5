"""Runs an engine in its own process, with a Python that has it.

    python -m tools.decoding.worker JOB

JOB is a JSON object: engine, sizes, kind, threads, folder. It prints {"ready": 1} when it is ready.
To ["scores", "steps" or "prompts", N] it answers {"found": [...]}, the result of that method of
`Engine`; or, at any time, {"error": REASON}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from .engines import Engine
from .llama import Sizes

ENGINES = {
    "llama.cpp": ("llama_cpp_engine", "LlamaCpp"),
    "OpenVINO": ("openvino_engine", "OpenVino"),
    "CTranslate2": ("ctranslate2_engine", "CTranslate2"),
}


def engine_of(job: dict[str, Any]) -> Engine:
    """The engine that a job names."""
    file, name = ENGINES[job["engine"]]
    make = getattr(importlib.import_module(f".{file}", __package__), name)
    made: Engine = make(Sizes(**job["sizes"]), job["kind"], job["threads"], Path(job["folder"]))
    return made


def main() -> None:
    """Answers the parent process; output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        engine = engine_of(json.loads(sys.argv[1]))
        print(json.dumps({"ready": 1}), file=answers)
        for line in sys.stdin:
            what, count = json.loads(line)
            found = list(map(float, getattr(engine, what)(count)))
            print(json.dumps({"found": found}), file=answers)
    except Exception as error:  # any error of a library becomes the answer
        lines = str(error).strip().splitlines() or [""]
        print(json.dumps({"error": f"{type(error).__name__}: {lines[-1][:300]}"}), file=answers)


if __name__ == "__main__":
    main()
