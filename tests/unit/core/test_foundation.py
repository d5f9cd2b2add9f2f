import random

import pytest

from coordinator.azure.credentials import AZURITE_KEY, Endpoints
from coordinator.azure.metering import Meter, Request, classify
from coordinator.backoff import Backoff
from coordinator.config import StorageConfig, check_name
from coordinator.errors import ConfigurationError
from coordinator.realtime.bus import RESYNC, LocalBus, Notification
from coordinator.storage import Storage


def test_back_off_grows_to_its_cap_and_never_above():
    backoff = Backoff(base_seconds=0.1, cap_seconds=1.0)
    assert [backoff.ceiling(n) for n in (0, 1, 3, 4, 1000)] == [0.1, 0.2, 0.8, 1.0, 1.0]
    rng = random.Random(1)
    assert all(0 <= backoff.delay(5, rng) <= 1.0 for _ in range(100))


@pytest.mark.parametrize("prefix", ["", "kennel", "Kennel-", "a--", "-a-", "x" * 40 + "-"])
def test_a_prefix_the_service_would_refuse_is_refused_at_once(prefix):
    with pytest.raises(ConfigurationError, match="prefix"):
        StorageConfig(prefix=prefix)


@pytest.mark.parametrize("name", ["ab", "Orders", "a--b", "-ab", "ab-", "a_b", "x" * 64, "a/b"])
def test_a_name_the_service_would_refuse_is_refused_with_the_name_in_the_message(name):
    with pytest.raises(ConfigurationError, match=repr(name)):
        check_name("gate", name)


def test_a_connection_string_gives_the_three_endpoints():
    endpoints = Endpoints.from_connection_string(
        "AccountName=acme;AccountKey=c2VjcmV0;EndpointSuffix=core.windows.net"
    )
    assert endpoints.queue == "https://acme.queue.core.windows.net"
    assert endpoints.table == "https://acme.table.core.windows.net"
    assert not endpoints.is_emulator
    assert Endpoints.from_connection_string("UseDevelopmentStorage=true").is_emulator


def test_development_storage_means_a_local_azurite():
    assert (
        Endpoints.from_connection_string("UseDevelopmentStorage=true").blob
        == "http://127.0.0.1:10000/devstoreaccount1"
    )


@pytest.mark.parametrize(
    ("text", "missing"),
    [("AccountName=acme", "AccountKey"), ("AccountKey=c2VjcmV0", "AccountName"), ("nonsense", "without '='")],
)
def test_a_broken_connection_string_is_explained_and_its_secret_is_not_shown(text, missing):
    with pytest.raises(ConfigurationError, match=missing) as caught:
        Endpoints.from_connection_string(text)
    assert "c2VjcmV0" not in str(caught.value)


def test_the_credential_is_in_no_repr():
    assert AZURITE_KEY not in repr(Endpoints.from_connection_string("UseDevelopmentStorage=true"))


def test_an_account_url_with_a_sas_needs_no_other_credential():
    endpoints = Endpoints.from_account_url("https://acme.blob.core.windows.net", "?sv=1&sig=x")
    assert endpoints.table == "https://acme.table.core.windows.net"
    assert endpoints.account == "acme"


def test_an_account_url_that_is_no_blob_endpoint_is_refused():
    with pytest.raises(ConfigurationError, match="blob endpoint"):
        Endpoints.from_account_url("https://acme.example", "sv=1")


def test_without_an_account_in_the_environment_the_error_names_both_variables():
    with pytest.raises(
        ConfigurationError, match="AZURE_STORAGE_CONNECTION_STRING.*AZURE_STORAGE_ACCOUNT_URL"
    ):
        Storage.from_env({})


def test_the_prefix_comes_from_the_environment():
    storage = Storage.from_env(
        {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true", "KENNEL_PREFIX": "acme-"}
    )
    assert storage.config.container("gates") == "acme-gates"
    assert storage.config.table("ledger") == "acmeledger"


BASE = "http://127.0.0.1:1/acct"


@pytest.mark.parametrize(
    ("service", "method", "path", "operation", "resource"),
    [
        ("blob", "GET", "/box/a/b", "GetBlob", "box"),
        ("blob", "PUT", "/box/a?comp=lease", "LeaseBlob", "box"),
        ("blob", "GET", "/box?restype=container&comp=list", "ListBlobs", "box"),
        ("blob", "PUT", "/box?restype=container", "CreateContainer", "box"),
        ("queue", "GET", "/jobs/messages?numofmessages=32", "GetMessages", "jobs"),
        ("queue", "GET", "/jobs/messages?peekonly=true", "PeekMessages", "jobs"),
        ("queue", "POST", "/jobs/messages", "PutMessage", "jobs"),
        ("queue", "DELETE", "/jobs/messages", "ClearMessages", "jobs"),
        ("queue", "DELETE", "/jobs/messages/123?popreceipt=x", "DeleteMessage", "jobs"),
        ("queue", "PUT", "/jobs/messages/123?popreceipt=x", "UpdateMessage", "jobs"),
        ("queue", "PUT", "/jobs", "CreateQueue", "jobs"),
        ("queue", "DELETE", "/jobs", "DeleteQueue", "jobs"),
        ("table", "GET", "/ledger()?$top=1", "QueryEntities", "ledger"),
        ("table", "POST", "/$batch", "EntityGroupTransaction", "$batch"),
        ("table", "POST", "/Tables", "CreateTable", "Tables"),
        ("table", "PUT", "/ledger(PartitionKey='a',RowKey='b')", "UpdateEntity", "ledger"),
    ],
)
def test_each_request_is_counted_as_the_service_names_it(service, method, path, operation, resource):
    assert classify(service, method, BASE + path, "/acct") == Request(service, operation, resource)


def test_a_claim_is_counted_with_its_queue_and_no_other_blob_is():
    def of(path, operation="GET"):
        return classify("blob", operation, BASE + path, "/acct", "kennel-claims").claims_of

    assert of("/kennel-claims/orders-in/0123", "PUT") == "orders-in"
    assert of("/kennel-claims?restype=container&comp=list&prefix=orders-in/") == ""
    assert of("/kennel-gates/orders-in/0123") == ""


def test_the_meter_adds_up_by_operation():
    meter = Meter()
    for name in ("one", "two"):
        meter.count(Request("queue", "GetMessages", name))
    assert meter.by_operation() == {"queue.GetMessages": 2}
    assert meter.total == 2


async def test_a_hint_reaches_the_subscribers_of_its_topic_and_resync_reaches_all():
    bus, seen = LocalBus(), []
    end = bus.subscribe("gate:a", lambda hint: seen.append(("a", hint.topic)))
    bus.subscribe("gate:b", lambda hint: seen.append(("b", hint.topic)))
    await bus.publish(Notification("gate:a"))
    await bus.publish(Notification(RESYNC))
    end()
    end()
    await bus.publish(Notification("gate:a"))
    assert seen == [("a", "gate:a"), ("a", RESYNC), ("b", RESYNC)]
