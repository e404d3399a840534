"""Waiting for processes and threads by what they do, not by the clock: on a machine that others use everything takes
longer, and what waits for a processor is no hang.

A hang is that no thread of any of the processes, or of those that they started, runs or could run, in :data:`LOOKS`
looks one after the other."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

STEP, LOOKS = 0.1, 600  # seconds between two looks


class Hang(TimeoutError):
    """What is waited for does nothing any more."""


class Watch:
    """Looks at the processes ``pids`` and at those that they have started; at this process too where it is one, but not
    at the thread that looks."""

    def __init__(self, *pids: int):
        self.pids, self._idle = pids, 0

    def look(self) -> None:
        """Raises :class:`Hang` where this and the looks before it found nothing that could run."""
        self._idle = 0 if any(map(_could_run, self.pids)) else self._idle + 1
        if self._idle > LOOKS:
            raise Hang(f"no thread of the processes {self.pids} has run for {LOOKS} looks")

    def until(self, done: Callable[[float], bool]) -> None:
        """Waits until ``done``, which gets the seconds to wait, says so. Raises :class:`Hang`."""
        while not done(STEP):
            self.look()


def _could_run(pid: int) -> bool:
    own = threading.get_native_id()
    for task in _listed(Path(f"/proc/{pid}/task")):
        try:
            state = (task / "stat").read_text().rpartition(") ")[2][0]
        except (OSError, IndexError):  # it has ended
            continue
        if state in "RD" and int(task.name) != own:
            return True
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        if any(_could_run(int(child)) for child in children):
            return True
    return False


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def wait(*processes: subprocess.Popen) -> None:
    """Waits for all of ``processes``. Raises :class:`Hang`; they are killed then."""
    watch = Watch(*(process.pid for process in processes))
    try:
        for process in processes:
            watch.until(lambda seconds, process=process: _ends(process.wait, seconds))
    finally:
        for process in processes:
            process.kill()


def _ends(wait_for: Callable, seconds: float) -> bool:
    try:
        wait_for(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    """As ``subprocess.run``, of text, with the output captured. Raises :class:`Hang`."""
    given = [text] if (text := options.pop("input", None)) is not None else []
    options |= {"stdin": subprocess.PIPE} if given else {}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    watch, said = Watch(process.pid), []

    def ended(seconds: float) -> bool:
        try:
            said[:] = process.communicate(given.pop() if given else None, timeout=seconds)  # once
        except subprocess.TimeoutExpired:
            return False
        return True

    try:
        watch.until(ended)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, *said)


def exit_code(child: int) -> int:
    """How the forked process ``child`` ended: -9 where it hung."""
    watch = Watch(child)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        try:
            watch.look()
        except Hang:
            os.kill(child, 9)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.01 if watch._idle < 20 else STEP)


def joined(*threads: threading.Thread) -> bool:
    """Waits for threads of this process; whether they have ended."""
    watch = Watch(os.getpid())
    try:
        for thread in threads:
            watch.until(lambda seconds, thread=thread: thread.join(seconds) or not thread.is_alive())
    except Hang:
        return False
    return True
