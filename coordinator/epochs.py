"""Where epochs are remembered outside the blob that carries them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

COUNTED = 10**11
"""The highest epoch that counting reaches: a thousand changes a second for three years. One above it was forged or damaged:
it is shown and followed, but not remembered, and nothing needs to go above it."""


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of a gate or a lease, and who used it. `since` is in seconds since 1970."""

    name: str
    epoch: int
    holder: str = ""
    since: float = 0.0
    nonce: str = ""


class EpochLog(Protocol):
    """Remembers the highest epoch of each name, so that a blob which was deleted, lowered or restored is noticed.

    `coordinator.testing.leadership.MemoryEpochs` is the one for unit tests.
    """

    async def claim(self, record: EpochRecord) -> int:
        """Remember this epoch as used. Returns 0; or, if it or a higher one was used before, the highest of them.

        Calling again with the same nonce returns 0: the answer to the first call may have been lost.
        """
