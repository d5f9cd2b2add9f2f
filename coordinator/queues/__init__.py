"""Queues: drained fast, nothing lost, nothing paid while idle (S6-S11, S14, S19-S20)."""
