"""The coding tools: Read, Edit, Write, Bash, with the names and parameters of Claude Code's tools."""

import re
from collections.abc import Sequence
from typing import ClassVar

from gym_service.sandbox.base import MAX_FILE_BYTES, Completed, FileRefused, Sandbox
from gym_service.tasks.command import CommandTask
from gym_service.tasks.commands import AllowedCommand
from gym_service.tasks.repository import RepositoryTask
from gym_service.tasks.suites import Instance, Task, environment_of
from gym_service.toolsets.base import Misuse, Progress, Tool
from gym_service.toolsets.bash import allowed_list, parse_command
from gym_service.toolsets.calls import write_calls
from gym_service.toolsets.listed import Command
from gym_service.toolsets.paths import shown, workspace_path
from gym_service.values import Message, ToolCall, ToolResult

_MAX_LINES = 2000
_MAX_LINE_CHARACTERS = 2000
_DEFAULT_BASH_SECONDS = 10
_REPOSITORY_TURNS = 40
"""In a repository there is more to read and to try than in a function."""
_ACCIDENTS = re.compile(
    r"(?<=\bat 0x)[0-9a-f]{6,16}\b"
    # pytest shortens long texts in the middle and at the end of a line, so that a part of an address is left.
    r"|(?<=\bat 0x)[0-9a-f]{1,5}(?=\.\.\.|\Z)"
    r"|(?<=\.\.\.)(?:(?:t? )?0?x)?[0-9a-f]{1,12}(?=>|\.\.\.)"
    r"|(?:(?<=started )|(?<=stopped )|(?<=daemon ))\d{1,15}(?=\)|\.\.\.)"
)
"""Addresses of objects and numbers of threads, which differ between sandboxes that do the same."""

_NATIVE_SYSTEM = (
    "You are a coding agent. The repository is {workspace}. "
    "Repair it with the tools, then answer without a tool call."
)
_TEXT_SYSTEM = (
    "You repair the repository {workspace} with tools (? marks what may be left out):\n"
    "{tools}\n"
    "Write each call as in this example, and end with an answer without a call:\n{example}"
)
_EXAMPLE = write_calls([ToolCall("Read", {"file_path": "a.py"})])


def _bash_tool(commands: Sequence[AllowedCommand] = ()) -> Tool:
    allowed = allowed_list(commands)
    return Tool(
        "Bash",
        f"Runs one command without a shell. Allowed: {allowed}.",
        {
            "command": {"type": "string", "description": "The command."},
            "timeout": {
                "type": "integer",
                "description": f"Milliseconds; {_DEFAULT_BASH_SECONDS * 1000} by default.",
            },
        },
        ("command",),
        f"runs one of {allowed}; timeout is in milliseconds.",
    )


class Coding:
    """See `base.Toolset`."""

    name: ClassVar[str] = "coding"
    max_turns: ClassVar[int] = 6
    max_edits: ClassVar[int] = 0
    answer_ends_episode: ClassVar[bool] = True
    native_tools: ClassVar[bool] = True
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool(
            "Read",
            "Reads a file of the repository and returns its lines with their numbers.",
            {
                "file_path": {"type": "string", "description": "The file."},
                "offset": {"type": "integer", "description": "The first line, from 1."},
                "limit": {"type": "integer", "description": f"The lines at most; {_MAX_LINES} by default."},
            },
            ("file_path",),
            "shows numbered lines.",
        ),
        Tool(
            "Edit",
            "Replaces an exact text in a file that was read before. The text must occur exactly once, unless "
            "replace_all is true.",
            {
                "file_path": {"type": "string", "description": "The file."},
                "old_string": {"type": "string", "description": "The text to replace, without line numbers."},
                "new_string": {"type": "string", "description": "The text to put in its place."},
                "replace_all": {"type": "boolean", "description": "Replaces every occurrence."},
            },
            ("file_path", "old_string", "new_string"),
            "replaces a text of a file that was read; it must occur once, and has no line numbers.",
        ),
        Tool(
            "Write",
            "Creates a file or replaces its whole content.",
            {
                "file_path": {"type": "string", "description": "The file."},
                "content": {"type": "string", "description": "The new content."},
            },
            ("file_path", "content"),
            "writes a whole file.",
        ),
        _bash_tool(),
    )

    def plays(self, task: Task) -> bool:
        return True

    def tools_for(self, task: Task) -> tuple[Tool, ...]:
        return (*self.tools[:-1], _bash_tool(_commands_of(task)))

    def turns_for(self, task: Task) -> int:
        return _REPOSITORY_TURNS if isinstance(task, RepositoryTask | CommandTask) else self.max_turns

    def opening(self, instance: Instance, *, native: bool = False) -> tuple[Message, ...]:
        workspace = environment_of(instance.task).workspace
        system = _NATIVE_SYSTEM.format(workspace=workspace)
        if not native:
            # Short: every episode of a small model reads it.
            lines = "\n".join(tool.line for tool in self.tools_for(instance.task))
            system = _TEXT_SYSTEM.format(workspace=workspace, tools=lines, example=_EXAMPLE)
        return (Message("system", system), Message("user", instance.request))

    def write(self, calls: Sequence[ToolCall]) -> str:
        return write_calls(calls)

    async def perform(
        self, call: ToolCall, instance: Instance, progress: Progress, sandbox: Sandbox
    ) -> ToolResult:
        arguments, workspace = call.arguments, environment_of(instance.task).workspace
        if call.tool == "Bash":
            command = parse_command(
                str(arguments["command"]), _commands_of(instance.task), workspace=workspace
            )
            return await self._bash(command, arguments.get("timeout"), sandbox)
        path = workspace_path(str(arguments["file_path"]), workspace)
        if path == ".":
            raise Misuse("is_directory", f"{workspace} is a folder")
        match call.tool:
            case "Read":
                return await self._read(
                    path, arguments.get("offset"), arguments.get("limit"), progress, sandbox
                )
            case "Edit":
                return await self._edit(path, arguments, progress, sandbox)
            case _:
                await sandbox.write_file(path, _encode(str(arguments["content"])))
                progress.read_paths.add(path)
                return ToolResult("Write", f"wrote {shown(path)}")

    async def _read(
        self, path: str, offset: object, limit: object, progress: Progress, sandbox: Sandbox
    ) -> ToolResult:
        first = 1 if offset is None else offset
        count = _MAX_LINES if limit is None else limit
        if not isinstance(first, int) or first < 1 or not isinstance(count, int) or count < 1:
            raise Misuse("invalid_arguments", "Read: offset and limit are whole numbers from 1")
        content = await sandbox.read_file(path)
        if b"\0" in content:
            raise Misuse("binary_file", f"{shown(path)} is a binary file")
        progress.read_paths.add(path)
        lines = content.decode(errors="replace").splitlines()
        if first > len(lines):
            return ToolResult("Read", f"(the file has {len(lines)} lines)")
        chosen = lines[first - 1 : first - 1 + min(count, _MAX_LINES)]
        text = "\n".join(
            f"{number:6d}\t{line[:_MAX_LINE_CHARACTERS]}" for number, line in enumerate(chosen, start=first)
        )
        cut = first - 1 + len(chosen) < len(lines) or any(len(line) > _MAX_LINE_CHARACTERS for line in chosen)
        return ToolResult("Read", text, output_truncated=cut)

    async def _edit(
        self, path: str, arguments: dict[str, object], progress: Progress, sandbox: Sandbox
    ) -> ToolResult:
        old, new = _encode(str(arguments["old_string"])), _encode(str(arguments["new_string"]))
        if not old:
            raise Misuse("empty_old_string", "old_string is empty")
        if old == new:
            raise Misuse("no_change", "old_string and new_string are identical")
        if progress.edits_left == 0:
            raise Misuse("no_edits_left", "no edits left")
        # Bytes, not text: everything outside the replaced span stays as it is, whatever its encoding.
        content = await sandbox.read_file(path)
        if path not in progress.read_paths:
            raise Misuse("not_read", f"{shown(path)} has not been read yet")
        count = content.count(old)
        if count == 0:
            raise Misuse("old_string_not_found", f"old_string is not in {shown(path)}")
        if count > 1 and not arguments.get("replace_all"):
            raise Misuse("old_string_not_unique", f"old_string occurs {count} times in {shown(path)}")
        # Known beforehand: many short texts for long ones could be more than the service has memory for.
        if len(content) + count * (len(new) - len(old)) > MAX_FILE_BYTES:
            raise FileRefused("too_large")
        await sandbox.write_file(path, content.replace(old, new))
        if progress.edits_left is not None:
            progress.edits_left -= 1
        return ToolResult("Edit", f"edited {shown(path)}")

    async def _bash(self, command: Command, given_ms: object, sandbox: Sandbox) -> ToolResult:
        timeout_ms = given_ms if isinstance(given_ms, int) else _DEFAULT_BASH_SECONDS * 1000
        if timeout_ms < 1:
            raise Misuse("invalid_arguments", "Bash: timeout is a positive number of milliseconds")
        for path in command.files:
            await sandbox.require_path(path, folder_allowed=False)
        for path in command.paths:
            await sandbox.require_path(path, folder_allowed=True)
        seconds = min(timeout_ms, sandbox.command_timeout_seconds * 1000) / 1000
        done = await sandbox.run(command.job, seconds)
        if command.program and command.is_absent(done):
            return ToolResult(
                "Bash", f"[{command.program} is not in this image]", exit_status=done.exit_status
            )
        return _render(done, seconds, command.erased)


def _commands_of(task: Task) -> tuple[AllowedCommand, ...]:
    return environment_of(task).commands


def _render(done: Completed, seconds: float, erased: str = "") -> ToolResult:
    """Turns what came of a command into what the policy reads."""
    text = done.output.decode(errors="replace")
    if erased:
        text = re.sub(erased, "...", text)
    text = _ACCIDENTS.sub("...", text)
    notes = []
    kind = ""
    if done.output_truncated:
        notes.append("[output cut: the limit is reached]")
    if done.timed_out:
        kind = "timeout"
        notes.append(f"[timed out after {seconds:g} s]")
    elif done.out_of_memory:
        kind = "out_of_memory"
        notes.append("[out of memory]")
    elif done.exit_status != 0 and not done.output_truncated:
        notes.append(f"[exit status {done.exit_status}]")
    if notes and text and not text.endswith("\n"):
        text += "\n"
    return ToolResult("Bash", text + "\n".join(notes), kind, done.output_truncated, done.exit_status)


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Misuse("invalid_arguments", "the text holds half of a surrogate pair") from None
