"""How the requests of counters and ledgers are signed and written, beside the SDK's."""

from __future__ import annotations

from functools import cmp_to_key

from azure.storage.blob._shared.authentication import compare
from hypothesis import given
from hypothesis import strategies as st

from coordinator.azure.rest import _service_order, error_code

NAMES = st.from_regex(r"x-ms-meta-[a-z_][a-z0-9_]{0,6}", fullmatch=True)


@given(st.lists(NAMES, unique=True))
def test_headers_are_signed_in_the_order_that_the_service_sorts_them_in(names: list[str]) -> None:
    assert sorted(names, key=_service_order) == sorted(names, key=cmp_to_key(compare))


def test_the_code_of_an_error_is_found_in_json_and_in_xml() -> None:
    assert error_code(b'{"odata.error":{"code":"TableNotFound","message":{}}}') == "TableNotFound"
    assert error_code(b"<Error><Code>BlobNotFound</Code></Error>") == "BlobNotFound"
    assert error_code(b"Bad Gateway") == ""
