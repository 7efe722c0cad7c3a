"""Reads a large log in sections, several of them at the same time in child processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from penstock.processes import can_fork, cores, start_child
from penstock.records.log import RunLog, Section

__all__ = ["Advance", "read_sections"]

T = TypeVar("T")
Advance = Callable[[int], None]
"""Called with the number of records that were read since its last call."""
Read = Callable[[RunLog, Advance], T]
"""Reads the records of the log, which are those of a section, and returns what it made of them."""

_MOST_PROCESSES = 8
"""Each takes about 40 MB."""


def read_sections(log: RunLog, read: Read[T], advance: Advance = lambda _: None) -> Iterator[T]:
    """Call `read` for each section, and yield the results in order. What `read` returns in a child process is pickled."""
    sections = log.sections
    damage = (0, False, 0, 0)
    processes = min(_most_processes(), len(sections))
    found = (
        _in_processes(log, sections, read, advance, processes) if processes > 1 else _here(log, sections, read, advance)
    )
    with contextlib.closing(found):
        for result, of_section in found:
            torn, requests, skipped, places = (a + b for a, b in zip(damage, of_section, strict=True))
            damage = torn, bool(requests), skipped, places
            yield result
    log.damage = damage


def _most_processes() -> int:
    return min(cores(), _MOST_PROCESSES) if can_fork() else 0


_Found = tuple[T, tuple[int, bool, int, int]]
"""What was read, and the damage of the section."""


def _here(
    log: RunLog, sections: Sequence[Section], read: Read[T], advance: Advance
) -> Generator[_Found[T], None, None]:
    for section in sections:
        yield _read(log, section, read, advance)


def _read(log: RunLog, section: Section, read: Read[T], advance: Advance) -> _Found[T]:
    log.section = section
    try:
        return read(log, advance), log.damage
    finally:
        log.section = None


def _in_processes(
    log: RunLog, sections: Sequence[Section], read: Read[T], advance: Advance, processes: int
) -> Generator[_Found[T], None, None]:
    running: dict[Connection, tuple[int, int]] = {}
    """The number of the section and the process, by the connection to the process."""
    done: dict[int, _Found[T]] = {}
    begun = 0
    try:
        for number in range(len(sections)):
            while number not in done:
                while begun < len(sections) and len(running) < processes:
                    connection, process = start_child(partial(_read, log, sections[begun], read))
                    running[connection] = begun, process
                    begun += 1
                ready = wait(list(running))
                for connection in [connection for connection in running if connection in ready]:
                    of_section, process = running[connection]
                    try:
                        answer = connection.recv()
                    except EOFError:  # it was killed
                        answer = _read(log, sections[of_section], read, advance)
                    if isinstance(answer, int):
                        advance(answer)
                        continue
                    del running[connection]
                    connection.close()
                    os.waitpid(process, 0)
                    if isinstance(answer, BaseException):
                        raise answer
                    done[of_section] = answer
            yield done.pop(number)
    finally:
        for connection, (_, process) in running.items():
            connection.close()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
