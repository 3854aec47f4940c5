"""The example server in its own process, with HTTP clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

from tests.tvm_hybrid.onnx_models import reference, saved, two_layers
from tests.tvm_hybrid.small_models import ROOT

pytestmark = pytest.mark.turns

COMMAND = "import sys; from tvm_hybrid_command import main; sys.exit(main())"


class Served:
    """The server of a model with dynamic rows under two names, and a client."""

    def __init__(self, folder: Path, *options: str) -> None:
        model = str(saved(folder, two_layers("rows")))
        arguments = ["serve", model, model, "--name", "model", "--name", "second"]
        arguments += ["--port", "0", "--threads", "1", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stderr is not None
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
                break
        else:
            raise AssertionError(self.said)
        self.client = httpx.Client(base_url=found[1], timeout=60)

    def infer(self, x: Any, **others: Any) -> httpx.Response:
        shape = list(np.shape(x))
        tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": np.ravel(x).tolist()}
        body = {"inputs": [tensor], **others}
        return self.client.post("/v2/models/model/infer", json=body)

    def counts(self) -> tuple[int, int]:
        (found,) = self.client.get("/v2/models/model/stats").json()["model_stats"]
        return found["inference_count"], found["execution_count"]

    def end(self) -> tuple[int, str]:
        """Sends Ctrl-C; returns the exit code and the output after it."""
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that batches up to four rows and waits long for them."""
    options = ["--streams", "2", "--max-batch", "4", "--max-delay-ms", "300"]
    server = Served(tmp_path_factory.mktemp("served"), *options)
    try:
        yield server
        code, said = server.end()
        assert code in (0, 130) and "Traceback" not in said, said
    finally:
        server.process.kill()


def test_it_says_what_it_does_before_it_listens(served: Served) -> None:
    *lines, _ = [line for line in served.said.splitlines() if ": " in line and "INFO" not in line]
    assert re.fullmatch(r"model: compiling .*\.onnx", lines[0])
    ready = "model: ready at /v2/models/model; streams: 2, threads of each: 1"
    assert ready in served.said and ready.replace("model", "second", 1) not in served.said
    assert "second: ready at /v2/models/second; " in served.said


def test_it_says_what_it_has(served: Served) -> None:
    get = served.client.get
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}
    assert get("/v2").json()["name"] == "tvm_hybrid"
    assert get("/v2/models/model/ready").json() == {"name": "model", "ready": True}
    about = get("/v2/models/model").json()
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}]
    assert about["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 5]}]
    assert get("/v2/models/second/versions/1").json() == {**about, "name": "second"}


def test_requests_at_once_are_put_together_and_have_their_own_results(served: Served) -> None:
    requests, runs = served.counts()
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((rows, 8)).astype(np.float32) for rows in (1, 1, 2, 3, 1, 6, 1, 1)]
    with ThreadPoolExecutor(len(feeds)) as pool:
        answers = list(pool.map(served.infer, feeds))
    for x, answer in zip(feeds, answers, strict=True):
        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["outputs"]
        assert (output["name"], output["datatype"]) == ("y", "FP32")
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        # Sums of 8 and 16 products, some of them above 10.
        assert np.allclose(found, reference(x), rtol=1e-5, atol=1e-4)
    requests, runs = served.counts()[0] - requests, served.counts()[1] - runs
    # Six rows exceed a batch; 10 others need at least three runs.
    assert requests == len(feeds) and 4 <= runs < requests


def test_an_answer_has_the_id_and_the_outputs_that_were_asked_for(served: Served) -> None:
    answer = served.infer(np.zeros((4, 8)), id="mine", outputs=[{"name": "y"}]).json()
    assert answer["id"] == "mine" and answer["model_name"] == "model"
    assert answer["outputs"][0]["shape"] == [4, 5]
    assert served.infer(np.zeros((4, 8)), outputs=[]).json()["outputs"] == []


X = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [0.0] * 8}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no JSON", "not one of the inference protocol"),
        ({"inputs": [{"name": "x"}]}, "missing required field"),
        ({"inputs": []}, "no value for input 'x'; the model's inputs are 'x'"),
        ({"inputs": [{**X, "name": "z"}]}, "no value for input 'x'"),
        ({"inputs": [X, {**X, "name": "z"}]}, "the model has no input 'z'"),
        ({"inputs": [X, X]}, "given twice"),
        ({"inputs": [{**X, "datatype": "FP31"}]}, "'FP31' is not one of BOOL, UINT8"),
        (
            {"inputs": [{**X, "datatype": "FP64"}]},
            "expected x: float32[rows, 8], got x: float64[1, 8]",
        ),
        ({"inputs": [{**X, "datatype": "INT8"}]}, "do not fit into INT8"),
        ({"inputs": [{**X, "data": ["a"] * 8}]}, "do not fit into FP32"),
        ({"inputs": [{**X, "data": [[0.0] * 7, [0.0]]}]}, "do not make FP32 of shape [1, 8]"),
        ({"inputs": [{**X, "shape": [1, 9]}]}, "do not make FP32 of shape [1, 9]"),
        (
            {"inputs": [{**X, "shape": [2, 4]}]},
            "expected x: float32[rows, 8], got x: float32[2, 4]",
        ),
        ({"inputs": [X], "outputs": [{"name": "q"}]}, "no output 'q'; its outputs are 'y'"),
    ],
)
def test_what_is_wrong_is_said(served: Served, body: Any, message: str) -> None:
    given = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = served.client.post("/v2/models/model/infer", **given)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_a_model_that_is_not_there(served: Served) -> None:
    for answer in (
        served.client.get("/v2/models/other"),
        served.client.get("/v2/models/other/ready"),
        served.client.post("/v2/models/other/infer", json={"inputs": [X]}),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"] == "there is no model 'other'; there are 'model', 'second'"


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v2/models/model/versions/2/ready", 404, "'model' has no version '2', only '1'"),
        ("/v2/nothing", 404, "Not Found"),
        ("/v2/models/model/infer", 405, "Method Not Allowed"),
    ],
)
def test_every_error_has_one_form(served: Served, path: str, status: int, message: str) -> None:
    answer = served.client.get(path)
    assert answer.status_code == status and answer.json() == {"error": message}


def test_metrics(served: Served) -> None:
    runs = served.counts()[1]
    served.infer(np.zeros((4, 8)))
    assert served.infer(np.zeros((4, 9))).status_code == 400
    text = served.client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['tvm_hybrid_runs_total{model="model"}']) == runs + 1
    assert float(values['tvm_hybrid_runs_total{model="second"}']) == 0
    for status in ("200", "400"):
        key = f'tvm_hybrid_request_seconds_count{{model="model",status="{status}"}}'
        assert float(values[key]) >= 1


@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("binary", [False, True])
def test_the_client_of_triton(served: Served, version: str, binary: bool) -> None:
    x = np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)
    with triton.InferenceServerClient(f"{served.client.base_url.netloc.decode()}") as client:
        assert client.is_server_live() and client.is_model_ready("second", version)
        given = triton.InferInput("x", [4, 8], "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        wanted = [triton.InferRequestedOutput("y", binary_data=binary)]
        found = client.infer("second", [given], version, wanted).as_numpy("y")
        again = client.infer("second", [given], version).as_numpy("y")  # binary by default
    assert np.allclose(found, reference(x), rtol=1e-5, atol=1e-4) and np.array_equal(found, again)


@pytest.mark.parametrize(
    ("content", "size", "message"),
    [
        (b"{}", "3", "Inference-Header-Content-Length is '3'; the request has 2 bytes"),
        (b"{}", "-1", "Inference-Header-Content-Length is '-1'"),
        (b'{"inputs": []}123', "14", "has 3 bytes behind its text, its inputs 0"),
    ],
)
def test_bytes_that_do_not_fit(served: Served, content: bytes, size: str, message: str) -> None:
    headers = {"Inference-Header-Content-Length": size}
    answer = served.client.post("/v2/models/model/infer", content=content, headers=headers)
    assert answer.status_code == 400 and message in answer.json()["error"]


def test_large_requests(served: Served) -> None:
    x = np.random.default_rng(1).standard_normal((3000, 8)).astype(np.float32)
    (output,) = served.infer(x).json()["outputs"]
    found = np.array(output["data"], np.float32).reshape(output["shape"])
    assert np.allclose(found, reference(x), rtol=1e-5, atol=1e-4)
