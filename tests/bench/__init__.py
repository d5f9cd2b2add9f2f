"""The test bench: a proxy that breaks connections, and a bench that breaks processes.

The parts themselves are public, in `coordinator.testing.faults` and `coordinator.testing.processes`; here is the proof that they do
what they say. A test that uses chance prints its seed when it fails; the same seed repeats the run.
"""
