"""A host clock that is off is told of once, and again when it is off by something else."""

from __future__ import annotations

import logging

import pytest

from jobs.clock import Skew
from jobs.conf import conf
from workers.skew import SkewWatch

TOLERANCE = conf().clock_tolerance_seconds
OFF = 600 * TOLERANCE


@pytest.mark.parametrize(
    ("readings", "told"),
    [
        ([0.0, TOLERANCE, -TOLERANCE], []),
        ([OFF, OFF, OFF + TOLERANCE / 2], [OFF]),
        ([OFF, -OFF, -OFF], [OFF, -OFF]),
        ([OFF, 0.0, 0.0, OFF], [OFF, OFF]),
    ],
)
def test_f26_a_skew_past_the_tolerance_is_told_once_until_it_changes(
    monkeypatch, caplog, readings, told
):
    watch = SkewWatch()
    with caplog.at_level(logging.WARNING):
        for reading in readings:
            skew = Skew(reading, 0.0)
            monkeypatch.setattr("workers.skew.measure_skew", lambda skew=skew: skew)
            assert watch.measure() == reading
    assert [record.seconds for record in caplog.records] == told


def test_a_reading_that_may_be_within_the_tolerance_is_not_told(monkeypatch, caplog):
    monkeypatch.setattr("workers.skew.measure_skew", lambda: Skew(1.5 * TOLERANCE, TOLERANCE))
    with caplog.at_level(logging.WARNING):
        SkewWatch().measure()
    assert caplog.records == []
