"""Temporary files that are unlinked as soon as they are open."""

import os
from pathlib import Path

import pytest

from penstock.processes import start_child
from penstock.scratch import Scratch, Spool, SpoolWriter


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_spools_hold_their_own_bytes_in_order(tmp_path: Path, size: int) -> None:
    with Scratch(str(tmp_path)) as scratch:
        spools = [Spool(scratch) for _ in range(3)]
        for number in range(50):
            spools[number % 3].write(b"%d," % number)
        spools[0].merge(spools[2])
        expected = b"".join(b"%d," % n for n in [*range(0, 50, 3), *range(2, 50, 3)])
        assert b"".join(spools[0].chunks(size)) == expected == bytes(spools[0].mapped())
        assert {len(chunk) for chunk in list(spools[0].chunks(size))[:-1]} <= {size}
        assert spools[0].size == len(expected)


def test_folder_is_empty_while_the_files_are_open(tmp_path: Path) -> None:
    with Scratch(str(tmp_path)) as scratch, scratch.another() as other:
        for spool in (Spool(scratch), Spool(other)):
            spool.write(bytes(100_000))
            memory = spool.mapped()
            memory[:3] = b"abc"
            assert next(spool.chunks())[:3] == bytes(3)  # the memory is a copy
        assert not os.listdir(tmp_path)


def test_parent_reads_the_spool_of_a_child(tmp_path: Path) -> None:
    with Scratch(str(tmp_path)) as scratch:
        other = scratch.another()

        def write(_: object) -> Spool:
            spool = Spool(other)
            SpoolWriter(spool).write(b"of the child")
            return spool

        connection, child = start_child(write)
        found = connection.recv()
        os.waitpid(child, 0)
        connection.close()
        whole = Spool(scratch)
        whole.write(b"of the parent, ")
        whole.merge(found)
        assert bytes(whole.mapped()) == b"of the parent, of the child"
