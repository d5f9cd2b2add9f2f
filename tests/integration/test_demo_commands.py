"""What the demo says to commands that make no sense."""

import os
import subprocess
import sys

import msgspec
import pytest

from dashboard.demo import control, running
from dashboard.demo.stack import DemoFailed
from tests.support.stack import PROJECT


def test_a_command_without_a_running_demo_says_how_to_start_one(tmp_path):
    with pytest.raises(DemoFailed, match="make demo"):
        control.send(tmp_path, "cut-hub")


def test_what_an_ended_demo_left_behind_is_not_a_running_one(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "running.json").write_bytes(msgspec.json.encode({"demo": ended.pid}))
    assert running.running_in(tmp_path) is None
    (tmp_path / "running.json").write_bytes(msgspec.json.encode({"demo": os.getpid()}))
    assert running.running_in(tmp_path) == {"demo": os.getpid()}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["-m", "dashboard.demo"], ["--workers", "0"]),
        (["-m", "dashboard.demo"], ["--orders", "0"]),
        (["-m", "dashboard.demo"], ["--scale-to", "2"]),
        (["manage.py", "demo"], ["--orders", "0"]),
        (["manage.py", "demo"], ["dance"]),
    ],
    ids=lambda words: words[-1],
)
def test_bad_options_are_refused_in_one_line(command, options):
    result = subprocess.run(
        [sys.executable, *command, *options],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert options[0] in result.stderr
