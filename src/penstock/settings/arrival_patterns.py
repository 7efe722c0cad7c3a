"""The arrival processes that `--arrival-pattern` can name, and the classes that implement them.

The classes are imported when a run uses them: the command line needs the names only."""

from __future__ import annotations

ARRIVAL_PATTERNS = {
    "poisson": "penstock.schedule.random_arrivals:Poisson",
    "constant": "penstock.schedule.arrivals:Constant",
    "gamma": "penstock.schedule.random_arrivals:Gamma",
}
"""Name -> module and class. The class is called with the rate, and with the `smoothness` if one is given."""
