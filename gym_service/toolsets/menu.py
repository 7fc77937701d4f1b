"""The menu: read, edit OPERATION, test, submit. The policy chooses, authored code writes the change."""

from collections.abc import Sequence
from typing import ClassVar

from gym_service.grading import oracle
from gym_service.sandbox.base import Sandbox
from gym_service.tasks.model import FunctionInstance, FunctionTask
from gym_service.tasks.operations import OPERATIONS, apply_operation
from gym_service.tasks.suites import Instance, Task
from gym_service.toolsets.base import Misuse, Progress, Tool
from gym_service.toolsets.calls import write_short_calls
from gym_service.values import Message, ToolCall, ToolResult

_SYSTEM = (
    "You repair a faulty function. Make one call per turn: "
    "<call> read </call> shows the source, <call> edit OPERATION </call> changes it, "
    "<call> test </call> runs the public tests, <call> submit </call> ends. "
    f"Operations: {' '.join(OPERATIONS)}."
)


class Menu:
    """See `base.Toolset`."""

    name: ClassVar[str] = "menu"
    max_turns: ClassVar[int] = 6
    max_edits: ClassVar[int] = 1
    answer_ends_episode: ClassVar[bool] = False
    native_tools: ClassVar[bool] = False
    """One notation for every model, so that the smallest can learn it."""
    tools: ClassVar[tuple[Tool, ...]] = (
        Tool("read", "Shows the source of the function.", {}),
        Tool(
            "edit",
            "Changes the source by one of the given operations.",
            {"operation": {"type": "string", "enum": list(OPERATIONS)}},
            ("operation",),
        ),
        Tool("test", "Runs the public tests.", {}),
        Tool("submit", "Hands in the function as it is and ends the episode.", {}),
    )

    def plays(self, task: Task) -> bool:
        return isinstance(task, FunctionTask)

    def tools_for(self, task: Task) -> tuple[Tool, ...]:
        return self.tools

    def turns_for(self, task: Task) -> int:
        return self.max_turns

    def opening(self, instance: Instance, *, native: bool = False) -> tuple[Message, ...]:
        assert isinstance(instance, FunctionInstance)
        # The task's description would give the family of the fault away: the policy has to read.
        return (Message("system", _SYSTEM), Message("user", f"Repair {instance.function_name}."))

    def write(self, calls: Sequence[ToolCall]) -> str:
        return write_short_calls(calls, {tool.name: tool for tool in self.tools})

    async def perform(
        self, call: ToolCall, instance: Instance, progress: Progress, sandbox: Sandbox
    ) -> ToolResult:
        assert isinstance(instance, FunctionInstance)
        path = instance.path
        match call.tool:
            case "read":
                return ToolResult("read", (await sandbox.read_file(path)).decode(errors="replace").strip())
            case "edit":
                return await self._edit(str(call.arguments["operation"]), path, progress, sandbox, instance)
            case "test":
                return ToolResult("test", await self._test(path, instance, sandbox))
            case _:
                progress.submitted = True
                return ToolResult("submit", "submitted")

    async def _edit(
        self, operation: str, path: str, progress: Progress, sandbox: Sandbox, instance: FunctionInstance
    ) -> ToolResult:
        if progress.edits_left == 0:
            raise Misuse("no_edits_left", "no edits left")
        if progress.edits_left is not None:
            progress.edits_left -= 1
        changed = apply_operation(operation, progress.source, instance.public_cases)
        if changed is None:
            return ToolResult("edit", "no change")
        progress.source = changed
        await sandbox.write_file(path, changed.encode())
        return ToolResult("edit", f"edited {path}")

    async def _test(self, path: str, instance: FunctionInstance, sandbox: Sandbox) -> str:
        """Runs the public cases; their expected values are no secret."""
        answers = await oracle.call_cases(sandbox, path, instance.function_name, instance.public_cases)
        lines = []
        for case, answer in zip(instance.public_cases, answers, strict=True):
            if not oracle.matches(answer, case, instance.task.comparison):
                given = ", ".join(map(repr, case.arguments))
                shown = repr(answer.value)[:200] if answer.returned else "an error"
                lines.append(f"fail {instance.function_name}({given}) -> {shown} want {case.expected!r}")
        passed = len(answers) - len(lines)
        return "\n".join([*lines, f"{passed} of {len(answers)} passed"])
