"""Queues: drained fast, nothing lost, nothing paid while idle."""
