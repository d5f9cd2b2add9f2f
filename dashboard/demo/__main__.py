"""``python -m dashboard.demo``: what ``manage.py demo`` starts, without loading Django first."""

from __future__ import annotations

import argparse
import sys

from coordinator.testing.azurite import AzuriteError
from dashboard.demo.stack import DemoFailed
from dashboard.demo.start import Options, add_arguments, start


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m dashboard.demo", description="Start the whole product on this machine."
    )
    add_arguments(parser)
    try:
        start(Options(**vars(parser.parse_args())))
    except (ValueError, DemoFailed, AzuriteError) as error:
        print(f"The demo did not start: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
