"""Workers on this machine: their number, their limit of open files."""

from __future__ import annotations

import os
import resource

import pytest

from penstock.errors import UserError
from penstock.workers.local_processes import choose_cluster_workers, choose_workers, raise_file_limit


@pytest.mark.parametrize(
    ("cores", "concurrency", "rate", "requests", "limit", "workers"),
    [
        (8, 1, None, None, None, 1),
        (8, 512, None, None, None, 1),
        (8, 513, None, None, None, 2),
        (8, 20_000, None, None, None, 7),
        (2, 20_000, None, None, None, 1),
        (1, 20_000, None, None, None, 1),
        (8, None, 2000.0, None, None, 1),
        (8, None, 10_000.0, None, None, 5),
        (8, 20_000, None, 3, None, 3),
        (8, 64, None, 20_000, None, 1),
        (8, 64, None, 50_000, None, 3),
        (8, 2, None, 50_000, None, 2),
        (2, 64, None, 50_000, None, 1),
        (8, 1, None, None, 4, 1),
        (8, 100, None, None, 4, 4),
        (2, 100, None, None, 4, 4),
        (8, 100, None, 2, 4, 2),
        (8, None, 5.0, 10, 2, 2),
        (8, 1000, None, None, 100, 64),
    ],
)
def test_number_of_workers_depends_on_the_load(monkeypatch, cores, concurrency, rate, requests, limit, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert choose_workers(concurrency, rate, requests, limit) == workers


class Limits:
    """The limits of a system that accepts no soft limit above `maximum`."""

    def __init__(self, soft: int, hard: int, maximum: int) -> None:
        self.now = (soft, hard)
        self._maximum = maximum

    def getrlimit(self, _: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] == resource.RLIM_INFINITY or limits[0] > self._maximum:
            raise ValueError("current limit exceeds maximum limit")
        self.now = limits


def install(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> Limits:
    monkeypatch.setattr(resource, "getrlimit", limits.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limits.setrlimit)
    return limits


@pytest.fixture
def limits(monkeypatch):
    return install(monkeypatch, Limits(1024, 4096, 4096))


@pytest.mark.parametrize(
    ("concurrency", "rate", "requests", "per_node", "cpus", "workers"),
    [
        (64, None, 1000, None, [4, 4], 2),
        (4096, None, None, None, [8, 8], 8),
        (4096, None, None, None, [3, 8], 4),
        (None, 100.0, 50, 2, [4, 4, 4], 6),
        (2, None, 50, 2, [4, 4, 4], 2),
    ],
)
def test_every_node_has_a_worker_and_as_many_as_the_load_needs(concurrency, rate, requests, per_node, cpus, workers):
    assert choose_cluster_workers(concurrency, rate, requests, per_node, cpus) == workers


def test_limit_that_the_system_does_not_report_is_found(monkeypatch):
    """macOS refuses more than 10,240, even if it reports no limit."""
    limits = install(monkeypatch, Limits(256, resource.RLIM_INFINITY, 10_240))
    raise_file_limit(300, 300, 1)
    assert 300 < limits.now[0] < 400
    raise_file_limit(None, 40, 1)
    assert limits.now[0] == 10_240
    with pytest.raises(UserError, match="the system allows 10240"):
        raise_file_limit(20_000, 20_000, 1)


def test_system_without_a_limit_is_left_alone(monkeypatch):
    limits = install(monkeypatch, Limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY, 0))
    raise_file_limit(20_000, 20_000, 1)
    assert limits.now[0] == resource.RLIM_INFINITY


def test_sufficient_file_limit_is_not_changed(limits):
    raise_file_limit(500, 500, 1)
    assert limits.now == (1024, 4096)


def test_file_limit_is_raised_as_far_as_needed(limits):
    raise_file_limit(2000, 2000, 1)
    assert 2000 < limits.now[0] <= 2100


def test_file_limit_is_raised_to_the_maximum_without_slots(limits):
    raise_file_limit(None, 40, 1)
    assert limits.now == (4096, 4096)


def test_workers_share_the_connections(limits):
    raise_file_limit(20_000, 20_000, 8)
    assert limits.now[0] >= 2500


def test_insufficient_file_limit_is_an_error(limits):
    with pytest.raises(UserError, match=r"20000 connections .* the system allows 4096; raise the limit \(ulimit -n\)"):
        raise_file_limit(20_000, 20_000, 1)
