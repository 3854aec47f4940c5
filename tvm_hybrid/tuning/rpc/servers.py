"""What the servers of a key are: which CPU to compile for and to name in records."""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple

from microkernels.base.errors import ServerError
from microkernels.base.tvm_compat.runtime import available_threads

from .tracker import Address, Tracker
from .worker import server_cpu

PATIENCE_SECONDS = 60.0
"""How long to wait for a server."""


class Servers(NamedTuple):
    """Servers that are all alike.

    Attributes
    ----------
    address : Address
        The tracker, and their key.
    cpu : str
        LLVM's name of their CPU.
    threads : int
        Threads that a kernel has there unless told otherwise.
    """

    address: Address
    cpu: str
    threads: int


def find_servers(address: Address, patience: float = PATIENCE_SECONDS) -> Servers:
    """Asks the next free server of a key what it is.

    Parameters
    ----------
    address : Address
        The tracker, and the key of the servers.
    patience : float
        Seconds to wait for one.

    Raises
    ------
    ServerError
        If there is no tracker, no server, or the server does not know.
    """
    # In a thread: to be connected with a server that hangs would take for ever.
    answers: queue.Queue[Servers | Exception] = queue.Queue()
    threading.Thread(target=_ask, args=(address, answers), daemon=True).start()
    try:
        answer = answers.get(timeout=patience)
    except queue.Empty:
        raise no_server(address, patience) from None
    if isinstance(answer, Exception):
        raise answer
    if not answer.cpu:
        raise ServerError(
            f"the servers with the key {address.key!r} cannot tell what CPU they have: they need "
            "the whole of TVM, as pip installs it, and not just its runtime"
        )
    return answer


def no_server(address: Address, seconds: float, reason: str = "") -> ServerError:
    """The error of having waited so long in vain."""
    because = f" ({reason})" if reason else ""
    return ServerError(
        f"no server with the key {address.key!r} for {seconds:g} s{because}; start some: "
        f"python -m tvm.exec.rpc_server --tracker {address} --key {address.key}"
    )


def _ask(address: Address, answers: queue.Queue[Servers | Exception]) -> None:
    from tvm import rpc

    server = None
    try:
        with Tracker(address) as tracker:
            server = tracker.request()
        session = rpc.connect(server.host, server.port, server.password)
        threads = available_threads(session.get_function)
        answers.put(Servers(address, server_cpu(session), threads))
    except ServerError as error:
        answers.put(error)
    except Exception as error:  # TVM raises several kinds
        answers.put(ServerError(f"the server {server} is lost: {error}"))
