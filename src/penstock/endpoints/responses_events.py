"""The events of the Responses API, and what each of them means to a benchmark: one table.

    delta      text that the model just made: a token for TTFT and ITL
    whole      the text of finished deltas once more: compared with them, and content only where no delta came
    part       the same in a content part, which says of which kind it is
    item       an output item: its text is compared like the others, and it goes into the history
    terminal   the end: status, usage and the whole output
    error      the end, badly
    progress   says how far things are; no token

A type that is not in the table is counted, shown in the report, and stops nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["EVENTS", "REASONING_KINDS", "Meaning", "Role"]

Role = Literal["delta", "whole", "part", "item", "terminal", "error", "progress"]


class Meaning(NamedTuple):
    role: Role
    kind: str = ""
    """Deltas and wholes of one kind belong together; for a terminal event, the status that it stands for."""
    field: str = "delta"
    """Where the text is."""


_PROGRESS = Meaning("progress")

REASONING_KINDS = frozenset(("reasoning", "summary"))
"""The rest of the text is visible output: text, refusals, and what the model writes into tool calls."""

EVENTS: dict[str, Meaning] = {
    "response.output_text.delta": Meaning("delta", "text"),
    "response.output_text.done": Meaning("whole", "text", "text"),
    "response.refusal.delta": Meaning("delta", "refusal"),
    "response.refusal.done": Meaning("whole", "refusal", "refusal"),
    "response.reasoning_text.delta": Meaning("delta", "reasoning"),
    "response.reasoning_text.done": Meaning("whole", "reasoning", "text"),
    "response.reasoning_summary_text.delta": Meaning("delta", "summary"),
    "response.reasoning_summary_text.done": Meaning("whole", "summary", "text"),
    "response.function_call_arguments.delta": Meaning("delta", "arguments"),
    "response.function_call_arguments.done": Meaning("whole", "arguments", "arguments"),
    "response.mcp_call_arguments.delta": Meaning("delta", "arguments"),
    "response.mcp_call_arguments.done": Meaning("whole", "arguments", "arguments"),
    "response.custom_tool_call_input.delta": Meaning("delta", "arguments"),
    "response.custom_tool_call_input.done": Meaning("whole", "arguments", "input"),
    "response.code_interpreter_call_code.delta": Meaning("delta", "code"),
    "response.code_interpreter_call_code.done": Meaning("whole", "code", "code"),
    "response.shell_call_command.delta": Meaning("delta", "command"),
    "response.shell_call_command.done": Meaning("whole", "command", "command"),
    "response.audio.transcript.delta": Meaning("delta", "transcript"),
    "response.content_part.done": Meaning("part"),
    "response.reasoning_summary_part.done": Meaning("part"),
    "response.output_item.done": Meaning("item"),
    "response.completed": Meaning("terminal", "completed"),
    "response.incomplete": Meaning("terminal", "incomplete"),
    "response.failed": Meaning("terminal", "failed"),
    "response.cancelled": Meaning("terminal", "cancelled"),
    "error": Meaning("error"),
} | dict.fromkeys(
    (
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.annotation.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_part.added",  # vLLM's, as the next one
        "response.reasoning_part.done",
        "response.shell_call_command.added",
        # What a tool of the server's says is not made by the model.
        "response.shell_call_output_content.delta",
        "response.shell_call_output_content.done",
        # Sound has no text; its transcript has.
        "response.audio.delta",
        "response.audio.done",
        "response.audio.transcript.done",
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.image_generation_call.in_progress",
        "response.image_generation_call.generating",
        "response.image_generation_call.partial_image",
        "response.image_generation_call.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call.completed",
        "response.mcp_call.failed",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_list_tools.failed",
        "response.compaction.compacting",
        "response.steer.accepted",
        "response.steer.pending",
        "response.steer.failed",
        "keepalive",
    ),
    _PROGRESS,
)
