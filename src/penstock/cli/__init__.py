"""The command line."""

import signal
import sys

_COMMANDS = ("/aiperf", "/penstock", "/penstock/__main__.py")

if sys.argv[:1] and sys.argv[0].endswith(_COMMANDS) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # This process is a Penstock command. Its imports take 100 ms, and Ctrl-C during them must not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    from penstock.cli import interrupts

    interrupts.install()
