"""The mock server as a child process: `python -m penstock.mock_server SETTINGS OPTION=VALUE ...`.

SETTINGS is `mock.server_settings` as JSON. `mock.mock_process` starts this program, which prints its port and ends with its
parent. Users start the server with `penstock mock`.
"""

from __future__ import annotations

import os
import sys

import msgspec

from penstock.errors import UserError
from penstock.mock_server.behaviour import read_options
from penstock.mock_server.run_server import serve
from penstock.mock_server.server_settings import ServerSettings


def announce(port: int) -> None:
    print(port, flush=True)


def main() -> int:
    if len(sys.argv) < 2:
        print("usage: penstock mock (the benchmark uses this form internally)", file=sys.stderr)
        return 2
    try:
        pairs = [(name, value) for name, _, value in (option.partition("=") for option in sys.argv[2:])]
        serve(read_options(pairs), msgspec.json.decode(sys.argv[1], type=ServerSettings), announce)
    except BrokenPipeError:  # the parent ended before it read the port
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes standard output again when it exits
        return 1
    except UserError as error:
        print(f"penstock mock: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
