"""The demo: the whole product on one machine, started, tried and stopped with one command."""
