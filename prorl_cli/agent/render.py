"""What a renderer is: the two-way street between a conversation and the exact token ids the policy reads and writes.

A renderer never re-tokenises what the policy wrote: the loop appends `extend` to the ids it has. Called by the
agent loop, by the warm start (which writes its transcripts in the same format) and by `prorl samples` (`decode`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
"""What stands for a character or an id that a renderer does not know."""

Message = dict[str, str]
"""`{"role": "system" | "user", "content": text}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call as the policy wrote it; whether such a tool exists is for the tool box to say."""

    tool: str
    arguments: dict[str, Any]

    @property
    def shown(self) -> str:
        """The arguments as JSON, for records."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One authored turn, understood. At most one of `call` and `malformed` is set; neither = an answer."""

    text: str
    """The turn's plain text without its end-of-turn token and without hidden reasoning."""
    call: Call | None = None
    malformed: str = ""
    """Why the turn is neither an answer nor a well-formed call, in words for the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as the policy is told about it: `parameters` is a JSON schema of kind object."""

    name: str
    description: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """The function schema that chat templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Renderer(Protocol):
    """One conversation format over one tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Every id that `start` and `extend` return is below this."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """A turn ends with the first of these; it belongs to the turn."""

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Prompt ids, ending where the policy writes."""

    def parse(self, ids: Sequence[int]) -> Turn:
        """Understand one authored turn; any ids at all are accepted."""

    def extend(self, tool_output: str, last_id: int | None = None) -> list[int]:
        """Ids between an authored turn and the next one. `last_id` is the turn's last token: a format whose turns
        must be closed by one certain token adds it when the policy stopped with another."""

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of any ids, control tokens shown."""
