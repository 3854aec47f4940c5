"""Starts TVM's tracker and servers on this machine: `python servers.py KEY`.

They are what `python -m tvm.exec.rpc_tracker` and `python -m tvm.exec.rpc_server` run, but forked
from one process, which imports TVM once. It prints the tracker's port once the tracker listens. For
every line of standard input it starts a server and prints its process id on a line. All end with
standard input.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable

HOST = "127.0.0.1"


def free_port() -> int:
    """A free port."""
    with socket.socket() as made:
        made.bind((HOST, 0))
        port: int = made.getsockname()[1]
        return port


def fork(serve: Callable[[], object]) -> int:
    """Forks a process that leads its own group and serves until it is killed; returns its id."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        keep = serve()
        while keep is not None:
            time.sleep(60)
    return pid


def main(key: str) -> None:
    """Serves until standard input ends."""
    from tvm.rpc import server, tracker

    port = free_port()
    pids = [fork(lambda: tracker.PopenTrackerServerState(HOST, port, port + 1, silent=True))]
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                break
        time.sleep(0.02)
    print(port, flush=True)

    def serve() -> object:
        own = free_port()
        return server.PopenRPCServerState(
            HOST, own, own + 1, key=key, tracker_addr=(HOST, port), silent=True
        )

    while sys.stdin.readline():
        pids.append(fork(serve))
        print(pids[-1], flush=True)
    for pid in pids:
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
