"""Stores in memory, faults, clocks and deaths, for tests of what is built on `coordinator`."""

from coordinator.testing.kills import Kills, kill_everywhere

__all__ = ["Kills", "kill_everywhere"]
