"""The control: signed REST over aiohttp and nothing else. What a client cannot beat without leaving out work.

`put N SECONDS`, or `work`: two loops that get 32 and then delete them all at once.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import re
import sys
import time
from email.utils import formatdate
from urllib.parse import quote
from xml.etree import ElementTree

import aiohttp
from yarl import URL

CONNECTION = os.environ["BENCH_CONNECTION_STRING"]
ACCOUNT = re.search("AccountName=([^;]+)", CONNECTION).group(1)
KEY = base64.b64decode(re.search("AccountKey=([^;]+)", CONNECTION).group(1))
BASE = re.search("QueueEndpoint=([^;]+)", CONNECTION).group(1)
ORIGIN, PATH = BASE[: BASE.index("/", 8)], BASE[BASE.index("/", 8) :] + "/bench-rest"


async def call(session, method, path, query, body=b""):
    date, kind = formatdate(usegmt=True), "application/xml" if body else ""
    resource = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"{method}\n\n\n{len(body) or ''}\n\n{kind}\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:2023-11-03\n/{ACCOUNT}{path}{resource}"
    signature = base64.b64encode(hmac.new(KEY, text.encode(), hashlib.sha256).digest()).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2023-11-03",
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
    }
    if kind:
        headers["Content-Type"] = kind
    url = URL(
        f"{ORIGIN}{path}?" + "&".join(f"{n}={quote(v, safe='')}" for n, v in query.items()), encoded=True
    )
    async with session.request(
        method, url, data=body or None, headers=headers, skip_auto_headers=("Content-Type",)
    ) as answer:
        content = await answer.read()
        if answer.status >= 300 and answer.status != 409:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]}")
        return content


async def put(session, item):
    body = f"<QueueMessage><MessageText>{json.dumps(item)}</MessageText></QueueMessage>".encode()
    await call(session, "POST", f"{PATH}/messages", {"messagettl": "-1"}, body)


async def fill(session, first, count, seconds):
    began = time.time()
    await put(session, [-1, 0])
    numbers = iter(range(first, first + count))
    started = time.perf_counter()

    async def some():
        for number in numbers:
            await put(session, [number, seconds])

    await asyncio.gather(*(some() for _ in range(8)))
    print(time.perf_counter() - started, began)


async def work(session):
    log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def one(message):
        number, seconds = json.loads(message.findtext("MessageText"))
        os.write(log, f"start {number} {time.time()}\n".encode())
        if seconds:
            await asyncio.sleep(seconds)
        os.write(log, f"end {number} {time.time()}\n".encode())
        id, receipt = message.findtext("MessageId"), message.findtext("PopReceipt")
        await call(session, "DELETE", f"{PATH}/messages/{id}", {"popreceipt": receipt})

    async def loop():
        while True:
            answer = await call(
                session, "GET", f"{PATH}/messages", {"numofmessages": "32", "visibilitytimeout": "30"}
            )
            found = list(ElementTree.fromstring(answer))
            await asyncio.gather(*(one(message) for message in found))
            if not found:
                await asyncio.sleep(0.5)

    await asyncio.gather(loop(), loop())


async def main():
    async with aiohttp.ClientSession() as session:
        await call(session, "PUT", PATH, {})
        if sys.argv[1] == "put":
            await fill(session, int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
        else:
            await work(session)


if __name__ == "__main__":
    asyncio.run(main())
