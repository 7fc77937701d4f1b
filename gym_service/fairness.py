"""Who is served next where callers compete: each in proportion to its weight, whatever the others send.

Start-time fair queueing (Goyal, Vin and Cheng, 1997): a request is marked with the virtual time up to which its caller
has been served, and the lowest mark is served next. Who asks for little waits for nobody's backlog, and what one caller
does not ask for goes to the others.
"""

import asyncio
import heapq
import itertools
from collections import Counter
from typing import Generic, TypeVar

from gym_service.callers import CALLER, Caller

COMMANDS_PER_PASS = 64
"""Commands that begin in one pass of the event loop, of all callers together: what one that comes now waits for."""
_BYTES_OF_A_COMMAND = 8192
"""What can be read, understood and kept in about the time of a small command."""
_BURST_SECONDS = 1.0
"""What a caller with a rate can have saved up."""
_WANTED_SECONDS = 1.0
"""How long a place is kept for who was refused: longer than a client is told to wait before it asks again."""

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """What waits, of all callers."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Item]] = []
        self._numbers = itertools.count()
        self._now = 0.0
        """The mark of what was served last."""
        self._served: dict[str, float] = {}
        """Up to where each caller has been served."""

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, caller: Caller, item: Item, cost: float = 1.0) -> None:
        """Lets something wait."""
        heapq.heappush(self._waiting, (self.charge(caller, cost), next(self._numbers), item))

    def pop(self) -> Item:
        """Gives what is served next. Raises IndexError where nothing waits."""
        self._now, _, item = heapq.heappop(self._waiting)
        return item

    def pass_by(self, caller: Caller, cost: float = 1.0) -> None:
        """Counts what was served at once, because nothing waited."""
        self._now = self.charge(caller, cost)

    def charge(self, caller: Caller, cost: float) -> float:
        """Counts what a caller is served; gives the mark of it."""
        mark = max(self._now, self._served.get(caller.name, 0.0))
        self._served[caller.name] = mark + cost / caller.weight
        return mark


class FairSemaphore:
    """A semaphore whose places go to the callers that wait for them in fair turn."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        handed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(CALLER.get(), handed)
        try:
            await handed
        except asyncio.CancelledError:
            # Handed over at the very moment in which the waiter gave up: it goes to the next one.
            if handed.done() and not handed.cancelled():
                self._hand_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting:
            handed = self._waiting.pop()
            if not handed.done():
                handed.set_result(None)
                return
        self._free += 1


class Turnstile:
    """Where commands begin: so many in each pass of the event loop, and of a caller no more than its rate.

    The service works in one thread, so that what has begun comes before what is still to come. Who sends a thousand
    commands at once therefore waits here, instead of everybody else behind them.
    """

    def __init__(self) -> None:
        self._waiting: FairQueue[tuple[asyncio.Future[None], int]] = FairQueue()
        self._left = COMMANDS_PER_PASS
        self._passing = False
        """Whether another pass is to come."""
        self._due: dict[str, float] = {}
        """When the next command of a caller with a rate is due, by the event loop's clock."""
        self._held_up: Counter[str] = Counter()
        """How much of each caller waits to enter."""

    async def enter(self, commands: int = 1) -> None:
        """Waits until so many commands of the caller may begin, or a message be read. They begin together."""
        caller, loop = CALLER.get(), asyncio.get_running_loop()
        if not self._passing:
            self._passing = True
            loop.call_soon(self._pass)
        if self._left > 0 and not self._waiting:
            self._left -= commands
            self._waiting.pass_by(caller, commands)
            return
        admitted: asyncio.Future[None] = loop.create_future()
        self._waiting.push(caller, (admitted, commands), commands)
        self._held_up[caller.name] += 1
        try:
            await admitted
        finally:
            self._held_up[caller.name] -= 1

    def holds_up(self, name: str) -> bool:
        """Whether something of the caller of this name waits to enter."""
        return self._held_up[name] > 0

    def charge(self, size_bytes: int) -> None:
        """Counts how large a message from or to the caller was: a large one takes the time of many commands."""
        self._waiting.charge(CALLER.get(), size_bytes / _BYTES_OF_A_COMMAND)

    async def keep_rate(self, commands: int = 1) -> None:
        """Waits until so many more commands keep the caller's rate. Nobody is refused for it."""
        caller = CALLER.get()
        if not caller.rate:
            return
        now = asyncio.get_running_loop().time()
        due = max(self._due.get(caller.name, 0.0), now - _BURST_SECONDS)
        self._due[caller.name] = due + commands / caller.rate
        try:
            await asyncio.sleep(max(0.0, due - now))
        except asyncio.CancelledError:
            # What was not served does not count.
            self._due[caller.name] -= commands / caller.rate
            raise

    def _pass(self) -> None:
        self._left = COMMANDS_PER_PASS
        while self._left > 0 and self._waiting:
            admitted, commands = self._waiting.pop()
            if not admitted.done():
                admitted.set_result(None)
                self._left -= commands
        self._passing = self._left < COMMANDS_PER_PASS
        if self._passing:
            asyncio.get_running_loop().call_soon(self._pass)


class Places:
    """Places that are held for as long as their holders like, such as those of live episodes.

    Nobody is turned out, but a place that comes free goes to whoever of those that want one has the fewest for its
    weight; who has none yet comes before all that have some, however little it weighs. Who wants one is who was refused
    lately.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._held: Counter[str] = Counter()
        self._wanting: dict[str, tuple[Caller, float]] = {}
        """Who was refused, each until when a place is kept, by the event loop's clock."""

    @property
    def held(self) -> int:
        """The places that are taken."""
        return self._held.total()

    def held_by(self, caller: Caller) -> int:
        """The places that the caller has."""
        return self._held[caller.name]

    def take(self, caller: Caller) -> bool:
        """Takes a place, and tells whether there was one."""
        now = asyncio.get_running_loop().time()
        self._wanting = {
            name: wanting
            for name, wanting in self._wanting.items()
            if name != caller.name and now < wanting[1]
        }
        share = self._share(caller)
        before = sum(self._share(other) < share for other, _ in self._wanting.values())
        if self.held + before >= self._places:
            self._wanting[caller.name] = caller, now + _WANTED_SECONDS
            return False
        self._held[caller.name] += 1
        return True

    def give_back(self, name: str) -> None:
        """Gives back a place of the caller of this name."""
        self._held[name] -= 1

    def _share(self, caller: Caller) -> float:
        return self._held[caller.name] / caller.weight
