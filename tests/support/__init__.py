"""The real parts that tests run against, each started by itself on free ports.

Imports nothing: the processes that tests start load settings from this package, some hundred times in a run.
"""
