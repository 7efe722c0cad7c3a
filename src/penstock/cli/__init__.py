"""The command line."""

# `_signal` is built in. Importing `signal` takes milliseconds, in which Ctrl-C would print a traceback.
import _signal  # type: ignore[import-not-found]
import sys

_COMMANDS = ("/aiperf", "/penstock", "/penstock/__main__.py")

if (
    sys.argv[:1]
    and sys.argv[0].endswith(_COMMANDS)
    and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
):
    # This process is a Penstock command. Its imports take 100 ms, and Ctrl-C during them must not print a traceback.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

    from penstock.cli import interrupts

    interrupts.install()
