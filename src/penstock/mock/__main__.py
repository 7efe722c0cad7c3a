"""The server as a child process: `python -m penstock.mock SERVING OPTION=VALUE ...`, with `mock.server_settings` as JSON.

It prints its port on a line of its own and ends with its parent; `mock.mock_process` is the other half. For use by hand there
is `penstock mock`.
"""

from __future__ import annotations

import sys

import msgspec

from penstock.errors import UserError
from penstock.mock.behaviour import read_options
from penstock.mock.run_server import serve
from penstock.mock.server_settings import ServerSettings


def announce(port: int) -> None:
    print(port, flush=True)


def main() -> int:
    if len(sys.argv) < 2:
        print("usage: penstock mock (this form is for the benchmark's own use)", file=sys.stderr)
        return 2
    try:
        pairs = [(name, value) for name, _, value in (option.partition("=") for option in sys.argv[2:])]
        serve(read_options(pairs), msgspec.json.decode(sys.argv[1], type=ServerSettings), announce)
    except UserError as wrong:
        print(f"penstock mock: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
