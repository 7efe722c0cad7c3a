"""A scratch file for tests."""

import tempfile

from penstock.scratch import Scratch

SCRATCH = Scratch(tempfile.gettempdir())
