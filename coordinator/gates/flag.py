"""The bare flag (S2): set or not, and nothing else."""

from __future__ import annotations

from typing import Protocol


class GlobalFlag(Protocol):
    """One bit that all nodes see.

    Guarantees that after `set_flag` returned, every `get_flag` sent later sees it. Does not tell who set it, when, or
    how often; does not push. `storage.flag(name)` is the one in a blob: the blob's presence means set, whatever is
    in it; clearing deletes it.
    """

    async def get_flag(self) -> bool:
        """Whether the flag is set."""

    async def set_flag(self, value: bool) -> None:
        """Set or clear the flag; harmless when repeated."""
