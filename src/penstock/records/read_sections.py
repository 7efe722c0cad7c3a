"""Reads the sections of a large log, several of them at the same time in child processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from penstock.processes import can_fork, cores, start_child

S = TypeVar("S")
T = TypeVar("T")
Advance = Callable[[int], None]
"""Called with the number of records that were read since its last call."""
Read = Callable[[S, Advance], T]
"""Reads the records of a section, and returns what it made of them."""

_MOST_PROCESSES = 8
"""Each takes about 40 MB."""


def most_processes() -> int:
    """Return how many processes are useful to read a log; 1 if this process cannot be forked."""
    return min(cores(), _MOST_PROCESSES) if can_fork() else 1


def read_sections(
    sections: Sequence[S], read: Read[S, T], advance: Advance = lambda _: None, *, processes: int
) -> Iterator[T]:
    """Call `read` for each section, and yield the results in order. With several processes, it is called in children of this
    one, and what it returns is pickled."""
    if processes < 2 or len(sections) < 2:
        yield from (read(section, advance) for section in sections)
        return
    with contextlib.closing(_in_processes(sections, read, advance, processes)) as found:
        yield from found


def _in_processes(
    sections: Sequence[S], read: Read[S, T], advance: Advance, processes: int
) -> Generator[T, None, None]:
    running: dict[Connection, tuple[int, int]] = {}
    """The number of the section and the process, by the connection to the process."""
    done: dict[int, T] = {}
    begun = 0
    try:
        for number in range(len(sections)):
            while number not in done:
                while begun < len(sections) and len(running) < processes:
                    connection, process = start_child(partial(read, sections[begun]))
                    running[connection] = begun, process
                    begun += 1
                ready = wait(list(running))
                for connection in [connection for connection in running if connection in ready]:
                    of_section, process = running[connection]
                    try:
                        answer = connection.recv()
                    except EOFError:  # it was killed
                        answer = read(sections[of_section], advance)
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
