"""A scripted policy that repairs functions by what it reads, for demonstrations of how an episode is played.

It knows what a reader knows: the conversation so far, and by rules over a source what is wrong with it where one of
five things is. It speaks in the ids of a model's own tokenizer, and is as good as its rules: whoever learns from it
keeps what the gym found resolved.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from trainer_client.models.policy import Row, Sampled


@dataclass(frozen=True, slots=True)
class Repair:
    """What to change in a source."""

    operation: str
    """The operation of the menu."""
    old: str
    """A line of the source, without its end."""
    new: str
    """The line or lines in its place."""


def find_repair(source: str) -> Repair | None:
    """Reads a source and returns what it would try, by the first sign that the source has; None without a sign."""
    for operation, sign, rewrite in _RULES:
        for line in source.splitlines():
            if re.search(sign, line):
                return Repair(operation, line, rewrite(line))
    return None


def _swap(line: str) -> str:
    return re.sub(r"\b(min|max)\(", lambda name: "max(" if name[1] == "min" else "min(", line)


def _guard(line: str) -> str:
    indent, divisor = re.sub(r"\S.*", "", line), re.split(r" (?://|/|%) ", line, maxsplit=1)[1]
    return f"{indent}if {divisor} == 0:\n{indent}    return 0\n{line}"


def _move_end(line: str) -> str:
    head, _, end = line.removesuffix("):").rpartition("range(")
    shorter = re.sub(r" [+-] 1$", "", end)
    return f"{head}range({shorter if shorter != end else end + ' + 1'}):"


def _toggle(line: str) -> str:
    return re.sub(r" ([<>])(=?) ", lambda sign: f" {sign[1]} " if sign[2] else f" {sign[1]}= ", line, count=1)


def _restart(line: str) -> str:
    return re.sub(r"\d+$", lambda number: "1" if number[0] == "0" else "0", line)


_RULES: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("swap_minmax", r"\b(min|max)\(", _swap),
    ("add_zero_guard", r" (//|/|%) ", _guard),
    ("fix_range", r"\brange\(", _move_end),
    ("fix_comparison", r" [<>]=? ", _toggle),
    ("fix_init", r"^\s+\w+ = \d+$", _restart),
)
"""Operation, its sign in a line, and the change of that line. The first sign counts."""

OPERATIONS = tuple(operation for operation, _, _ in _RULES)
"""Those that a repair can have."""


class Demonstrator:
    """A policy that reads, repairs, tests if it is asked to, and hands in."""

    version = "demonstrator"
    temperature = 1.0

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        end_of_turn: str,
        *,
        toolset: str,
        tests_first: bool,
        max_new_tokens: int,
    ) -> None:
        """Plays the menu or the coding tools in turns of at most so many ids."""
        self.max_new_tokens = max_new_tokens
        self._tokenizer = tokenizer
        self._end_of_turn = end_of_turn
        self._script = self._play_menu if toolset == "menu" else self._play_coding
        self._tests_first = tests_first

    async def sample_turn(self, rows: Sequence[Row]) -> list[Sampled]:
        """Returns the next turn of each row. The log-probabilities are not known and given as 0.

        Raises ValueError for a turn that is longer than max_new_tokens.
        """
        return [self._speak(row) for row in rows]

    def _speak(self, row: Row) -> Sampled:
        said = str(
            self._tokenizer.decode(row.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )
        # A call in the prompt is an example, and no end of a turn follows it.
        text = next(turn for turn in self._script(said) if turn + self._end_of_turn not in said)
        ids = self._tokenizer.encode(text + self._end_of_turn, add_special_tokens=False)
        if len(ids) > self.max_new_tokens:
            raise ValueError(
                f"max_new_tokens is {self.max_new_tokens}: a demonstration has a turn of {len(ids)} tokens; set it to "
                "that or more"
            )
        return Sampled(tuple(ids), (0.0,) * len(ids))

    def _play_menu(self, said: str) -> Iterator[str]:
        """Yields the turns of the episode in order, as far as it has gone."""
        yield (read := "<call> read </call>")
        repair = find_repair(self._answer_to(read, said).partition("def ")[2])
        if repair:
            yield f"<call> edit {repair.operation} </call>"
        if self._tests_first:
            yield "<call> test </call>"
        yield "<call> submit </call>"

    def _play_coding(self, said: str) -> Iterator[str]:
        """Yields the turns of the episode in order, as far as it has gone."""
        asked = re.search(r"\bRepair (\S+\.py)\b", said)
        if asked is None:
            yield "I do not see what to repair."
            return
        path = asked[1]
        yield (read := _call("Read", file_path=path))
        # Each line stands behind its number and a tab.
        lines = re.findall(r"\d+\t(.*)", self._answer_to(read, said))
        repair = find_repair("\n".join(lines))
        if repair:
            yield _call("Edit", file_path=path, old_string=repair.old, new_string=repair.new)
        if self._tests_first:
            yield _call("Bash", command="pytest -q")
        yield f"{path} is repaired." if repair else f"I see no fault in {path}."

    def _answer_to(self, call: str, said: str) -> str:
        return said.partition(call + self._end_of_turn)[2].partition(self._end_of_turn)[0]


def _call(name: str, **arguments: str) -> str:
    """Writes a call as the templates of Qwen render it."""
    content = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{content}\n</tool_call>"
