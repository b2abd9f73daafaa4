"""One child process, seen from its worker: start it, give it minijobs, limit it, end it, say why it ended.

It is a fresh interpreter (`python -m protea.jobs.child`) that serves one minijob after another, so that what it has read
and compiled serves the next one. Requests go to its standard input and messages come from its standard output, a JSON
document a line. When the worker dies its input ends, and so does the child. Called by `worker`.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from protea.settings import Settings

GRACE = 1.0
"""Seconds between asking a child to end (TERM) and making it (KILL)."""
LOOK = 0.25
"""Seconds between two looks at a child's memory."""
_LINE = 64 << 20
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "PROTEA_THREADS")


@dataclass(frozen=True)
class Outcome:
    """How a minijob went: `done` with what it gave, or `error` with code and message, or `died` with the reason."""

    kind: str
    code: str = ""
    message: str = ""
    permanent: bool = False
    lost: bool = False
    """It was killed by someone else: not its own fault."""
    what: dict[str, Any] = field(default_factory=dict)


class Child:
    """A running child process; make it with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, threads: int, max_memory: int | None) -> None:
        self.process, self.threads, self.max_memory = process, threads, max_memory
        self.memory = 0
        """Bytes at the last look, without the pages that are only mapped files."""
        self._why: Outcome | None = None
        self._said = b""
        self._oom = _oom_kills()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._look())]
        self._seen = psutil.Process(process.pid)
        self.name = f"{process.pid}:{self._seen.create_time():.2f}"

    @classmethod
    async def start(cls, settings: Settings, threads: int, max_memory: int | None) -> Self:
        """A child with so many threads for BLAS, compiled loops and Arrow, or PROTEA_THREADS."""
        threads = settings.threads or threads
        environment = os.environ | settings.environment() | dict.fromkeys(_THREADS, str(threads))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "protea.jobs.child", env=environment, limit=_LINE, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process, threads, max_memory)

    @property
    def alive(self) -> bool:
        return self.process.returncode is None and self._why is None

    async def run(self, request: dict[str, Any], hear: Callable[[dict[str, Any]], Awaitable[None]]) -> Outcome:
        """Have a minijob done; `hear` gets every message on the way. Never raises for what the child does."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            await self.process.stdin.drain()
        while line := await self.process.stdout.readline():
            try:
                message = json.loads(line)
            except ValueError:
                continue  # the last line of a killed process
            if "done" in message:
                return Outcome("done", what=message["done"])
            if "error" in message:
                return Outcome("error", **message["error"])
            await hear(message)
        await self.process.wait()
        return self._why or self._verdict()

    def _verdict(self) -> Outcome:
        """Why the process ended by itself."""
        code = self.process.returncode or 0
        said = self._said.decode(errors="replace").strip().splitlines()
        last = f": {said[-1].strip()}" if said else ""
        if code >= 0:
            return Outcome("died", "died", f"its process ended with status {code}{last}")
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL and (_oom_kills() or 0) > (self._oom or 0):
            return Outcome("died", "memory", "the system ran out of memory and killed its process")
        if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            return Outcome("died", "killed", f"its process was killed by {name}", lost=True)
        return Outcome("died", "died", f"its process died of {name}{last}")

    async def end(self, why: Outcome | None = None) -> None:
        """Ask it to end, then make it. `why` becomes the outcome of what it is doing."""
        self._why = self._why or why or Outcome("died", "stopped", "it was stopped")
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), GRACE)
            except TimeoutError:
                self.kill()
        await self.process.wait()
        for task in self._tasks:
            task.cancel()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def _listen(self) -> None:
        """Keep the last of what it writes to standard error."""
        assert self.process.stderr is not None
        while block := await self.process.stderr.read(4096):
            self._said = (self._said + block)[-4096:]

    async def _look(self) -> None:
        while self.process.returncode is None:
            with contextlib.suppress(psutil.Error):
                info = self._seen.memory_info()
                self.memory = info.rss - getattr(info, "shared", 0)
            if self.max_memory and self.memory > self.max_memory:
                used, limit = (f"{n / (1 << 20):,.0f} MB" for n in (self.memory, self.max_memory))
                self._why = Outcome("died", "memory", f"it used {used} of memory; --max-memory allows {limit}")
                self.kill()
            await asyncio.sleep(LOOK)


def _oom_kills() -> int | None:
    """How many processes of our control group the kernel has killed for memory."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        for place in (Path("/sys/fs/cgroup") / group.lstrip("/"), Path("/sys/fs/cgroup")):
            if (file := place / "memory.events").exists():
                return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])
    return None
