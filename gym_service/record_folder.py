"""The folder of the records, STATE_FOLDER/records: one file per episode, for its owner alone.

Records are written by one thread, apart from those that start containers, so that no slow engine holds up a verdict.
A record that cannot be written is a warning: what an episode is worth does not depend on a disk.
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gym_service.private_file import write_private
from gym_service.record import Link, Sealer, seal_line
from gym_service.values import Verdict, VerdictStatus

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 30
"""What the records may take together; beyond it no more are written."""


class RecordFolder:
    """Writes the records that are to be kept."""

    def __init__(self, folder: Path, kept: str, sealer: Sealer, max_bytes: int = MAX_BYTES) -> None:
        """`kept` is none, flagged or all. Counts what is there; the folder is made with the first record."""
        self._folder = folder
        self._kept = kept
        self._sealer = sealer
        self._max_bytes = max_bytes
        # What was being written when an earlier service was killed.
        for path in folder.glob("*.new"):
            path.unlink()
        self._bytes = sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0
        self._is_full = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")

    @property
    def gym(self) -> str:
        """The name of the gym in its records."""
        return self._sealer.gym

    async def keep(self, episode_id: str, verdict: Verdict, record: Sequence[Link]) -> None:
        """Writes a record if records like it are kept; returns when it is written, or could not be."""
        suspicious = bool(verdict.flags) or verdict.status is VerdictStatus.TAMPER_SUSPECTED
        if self._kept == "all" or (self._kept == "flagged" and suspicious):
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._write, episode_id, record)

    def close(self) -> None:
        """Waits for what is being written."""
        self._thread.shutdown()

    def _write(self, episode_id: str, record: Sequence[Link]) -> None:
        seal = seal_line(self._sealer.seal(record[-1].sha256))
        content = b"".join([*(link.line for link in record), seal])
        if self._bytes + len(content) > self._max_bytes:
            if not self._is_full:
                self._is_full = True
                logger.warning(
                    "%s holds %d MiB, the most there may be: records are no longer written; "
                    "move them away and start the service again",
                    self._folder,
                    self._max_bytes >> 20,
                )
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_private(self._folder / f"{episode_id}.jsonl", content)
            self._bytes += len(content)
        except OSError as error:
            logger.warning("the record of episode %s could not be written: %s", episode_id, error)
