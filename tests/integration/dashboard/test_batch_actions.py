"""Promises of what operators do to batches and sagas when it cannot be done, and over the socket."""

from __future__ import annotations

import asyncio
import html
import json

from coordinator import Saga, Storage
from coordinator.config import StorageConfig
from coordinator.tables.saga import SagaContext
from tests.support.dashboard import Dashboard, Person, audit_of


async def test_what_cannot_be_done_to_a_batch_or_saga_is_said_and_in_the_audit(dashboard: Dashboard) -> None:
    config = StorageConfig(prefix=dashboard.prefix)
    async with Storage.from_connection_string(dashboard.connection_string, config=config) as storage:
        squares = storage.pipeline("squares", range, abs, _add, item=int, result=int)
        await squares.start("b1", 5)
        trip: Saga[str] = storage.saga("trip", input=str)
        await trip.start("t1", "olga")
        with Person(dashboard, "adam") as adam:

            async def said(path: str, **fields: str) -> str:
                answer = await asyncio.to_thread(adam.post, path, fields, page="/batches/")
                assert answer.status_code == 200
                return html.unescape(answer.text)

            told = await said("/batches/squares/b1/retry")
            assert "atch b1 of squares is running; only a partial batch has failures" in told
            assert "Batch b9 of squares does not exist." in await said("/batches/squares/b9/cancel")
            assert "Batch b1 of circles does not exist." in await said("/batches/circles/b1/retry")
            assert "trip t1 is running, not stuck" in await said("/sagas/trip/t1/retry")
            assert "Saga trip with key t9 does not exist." in await said("/sagas/trip/t9/retry")
            page = html.unescape(
                (await asyncio.to_thread(adam.get, "/batches/?pipeline=squares&batch=b9")).text
            )
            assert "Batch b9 of squares does not exist." in page

            async with adam.socket("batches") as socket:
                for target in ("squares", "squares/b1"):
                    await socket.send(adam.frame("batch.cancel", target))
                answers: list[dict[str, object]] = []
                while len(answers) < 2:
                    frame = await asyncio.wait_for(socket.recv(), 30)
                    if str(frame).startswith('{"ok"'):
                        answers.append(json.loads(frame))
            assert [each["ok"] for each in answers] == [False, True]
            assert "Name a pipeline and a batch" in str(answers[0]["error"])
        assert (await squares.status("b1")).state == "cancelled"
    rows = [(row["action"], row["target"], row["outcome"]) for row in audit_of(dashboard)]
    for expected in (
        ("batch.retry", "squares/b1", "failed"),
        ("batch.cancel", "squares/b9", "failed"),
        ("saga.retry", "trip/t1", "failed"),
        ("batch.cancel", "squares/b1", "done"),
    ):
        assert expected in rows


async def test_a_stuck_step_is_marked_repaired_once_after_its_name_was_typed(dashboard: Dashboard) -> None:
    config = StorageConfig(prefix=dashboard.prefix)
    async with Storage.from_connection_string(dashboard.connection_string, config=config) as storage:
        trip: Saga[str] = storage.saga("stuck-trip", input=str)

        async def cancel(context: SagaContext[str]) -> None:
            raise RuntimeError("the hotel no longer exists")

        @trip.step(attempts=1)
        async def hotel(context: SagaContext[str]) -> None:
            raise RuntimeError("no room")

        hotel.compensate(cancel)
        await trip.start("t1", "olga")
        ended = await trip.run("t1")
        assert ended is not None
        assert ended.state == "stuck"
        with Person(dashboard, "olga") as olga:
            address = "/sagas/stuck-trip/t1/repair"
            asked = await asyncio.to_thread(olga.get, address)
            assert "Mark hotel repaired?" in asked.text
            wrong = await asyncio.to_thread(olga.post, address, {"typed": "car"}, page=address)
            assert wrong.status_code == 422
            done = await asyncio.to_thread(olga.post, address, {"typed": "hotel"}, page=address)
            assert "Step hotel of t1 counts as undone." in done.text
            late = await asyncio.to_thread(olga.get, address)
            assert "t1 is not stuck on a step to undo" in late.text
        assert (await trip.read("t1")).state == "compensated"
    rows = [row for row in audit_of(dashboard) if row["action"] == "saga.repair" and row["outcome"] == "done"]
    assert [(row["actor"], row["target"], json.loads(row["after"])) for row in rows] == [
        ("olga", "stuck-trip/t1", {"undone": "hotel", "state": "compensated"})
    ]


def _add(total: int | None, results: list[int]) -> int:
    return (total or 0) + sum(results)
