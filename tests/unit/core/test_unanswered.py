"""What is said, and what is left behind, when storage does not answer or a credential is refused at the door."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings

import pytest

from coordinator import Storage
from tests.support.ports import free_port


async def test_a_credential_that_the_sdk_refuses_leaves_no_session_open() -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        storage = Storage.from_account_url("https://shop.blob.core.windows.net", 42)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="credential"):
            await storage.gate("start").read()
        await storage.aclose()
        del storage
        gc.collect()
    assert [str(warning.message) for warning in warned if "Unclosed" in str(warning.message)] == []


def test_a_command_that_waits_for_storage_says_so_before_it_gives_up() -> None:
    nobody = f"http://127.0.0.1:{free_port()}/devstoreaccount1"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=a2V5;BlobEndpoint={nobody};"
        f"QueueEndpoint={nobody};TableEndpoint={nobody}"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "coordinator", "release", "start"],
        env=os.environ | {"AZURE_STORAGE_CONNECTION_STRING": connection},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as command:
        assert command.stderr is not None
        said = iter(command.stderr.readline, "")
        assert any("still trying" in line for line in said), "it gave up without a word"
        command.kill()
