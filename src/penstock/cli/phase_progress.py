"""How much of a phase is done, what a run that is stopping waits for, and the format of times."""

from __future__ import annotations

from penstock.plural import counted


def share_done(ended: int, expected: int | None, seconds: float, duration_s: float | None) -> float | None:
    """Return the share of a phase that is done, by its requests or by its time; None if its end is not known."""
    share = None
    if expected is not None:
        share = min(1.0, ended / expected) if expected else 1.0
    if duration_s:
        by_time = min(1.0, seconds / duration_s)
        share = by_time if share is None else max(share, by_time)
    return share


def remaining_s(share: float | None, seconds: float) -> float | None:
    """Return the time that is left if the phase goes on as before; None if that is not known."""
    return seconds / share - seconds if share else None


def stop_text(level: int, in_flight: int) -> str:
    """Return what a run that was interrupted `level` times waits for."""
    if level == 1:
        return f"Stopping: waiting for {counted(in_flight, 'request')} in flight; Ctrl-C again to stop at once."
    if level == 2:
        return "Stopping at once. Ctrl-C again kills the workers that do not stop."
    return "Killing the workers that do not stop."


def clock(seconds: float) -> str:
    whole = int(seconds + 0.5)
    return (
        f"{whole // 60:02d}:{whole % 60:02d}"
        if whole < 3600
        else f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    )
