import asyncio


def test_orders_are_sold_once_the_gate_opens(kennel_storage, kennel_worker, capsys):
    async def scenario():
        orders = kennel_storage.queue("orders-in")
        async with kennel_worker("worker:worker"):
            await orders.put({"item": "ticket", "cents": 4200}, {"item": "poster", "cents": 900})
            assert await orders.depth() == 1  # the gate is closed; both items share a message
            await kennel_storage.gate("start").open(by="test")
            await kennel_storage.until_empty("orders-in")

    asyncio.run(scenario())
    sold = sorted(capsys.readouterr().out.splitlines())
    assert [line.partition(":")[0] for line in sold] == ["Sold poster for 9.00", "Sold ticket for 42.00"]
    assert {line.rpartition(" ")[2] for line in sold} == {"1", "2"}


def test_what_is_no_order_goes_to_poison(kennel_storage, kennel_worker):
    async def scenario():
        async with kennel_worker("worker:worker"):
            await kennel_storage.gate("start").open(by="test")
            await kennel_storage.queue("orders-in").put({"item": "ticket"})
            await kennel_storage.until_empty("orders-in")
        [poison] = await kennel_storage.queue("orders-in").poison.peek()
        assert "cents" in poison.items[0].reason

    asyncio.run(scenario())
