"""The `hermes` renderer: chat template and tool calls of the Qwen family, from a Hugging Face tokenizer folder.

    <|im_start|>assistant
    <tool_call>
    {"name": "calculator", "arguments": {"expression": "1 + 2"}}
    </tool_call><|im_end|>
    <|im_start|>user
    <tool_response>
    3
    </tool_response><|im_end|>

The folder's own template writes the first prompt, and is asked once what it puts around a tool's output; after that
ids are only appended. So a template that would drop or re-write an earlier turn never gets to. Refuses folders
whose template has no tool turns. One call a turn; calls inside `<think>` are thoughts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from prorl_cli.agent.render import REPLACEMENT, Call, Message, Tool, Turn
from prorl_cli.errors import UserError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(re.escape(OPEN) + r"(.*)" + re.escape(CLOSE), re.DOTALL)
_MARK = "\u2045prorl-%s\u2046"
_USER, _ASSISTANT, _OUTPUT = _MARK % "user", _MARK % "assistant", _MARK % "output"
_RESPONSE_TAGS = ("<tool_response>", "</tool_response>")
DEFUSED = "\u200b"
"""Put inside text of tasks and tools that spells a control token, so that it stays text (zero-width space)."""


class HermesRenderer:
    """Over the tokenizer in `folder`; `UserError` when there is none or its template cannot carry tool turns."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load_tokenizer(folder)
        self._before, self._after, self._end = _tool_turn(self._tokenizer, folder)
        others = _end_of_sequence_ids(folder, self._tokenizer) - {self._end}
        self.stop_ids: tuple[int, ...] = (self._end, *sorted(others))
        self.vocab_size: int = len(self._tokenizer)
        self._control = tuple(_control_tokens(self._tokenizer).values())

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The template's prompt, tools described in its own way."""
        safe = [self._safe(message) for message in messages]
        schemas = [tool.schema for tool in tools] or None
        text = self._tokenizer.apply_chat_template(safe, tools=schemas, tokenize=False, add_generation_prompt=True)
        return self._encode(text)

    def parse(self, ids: Sequence[int]) -> Turn:
        """An answer, or one `<tool_call>` with a JSON object; text around the call is kept as the turn's text."""
        body = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        text = self.decode(body).rpartition("</think>")[2].partition("<think>")[0].strip()
        opened, closed = text.count(OPEN), text.count(CLOSE)
        if not opened and not closed:
            return Turn(text=text)
        match = _CALL.search(text)
        if match is None or opened != closed:
            return Turn(text=text, malformed=f"unbalanced {OPEN} tags")
        if opened > 1:
            return Turn(text=text, malformed="one tool call a turn, please")
        try:
            call = read_call(match[1])
        except ValueError as error:
            return Turn(text=text, malformed=f"bad tool call: {error}")
        return Turn(text=(text[: match.start()] + text[match.end() :]).strip(), call=call)

    def extend(self, tool_output: str, last_id: int | None = None) -> list[int]:
        """The template's tool turn around the output; a turn that stopped by another token is closed first."""
        closing = [self._end] if last_id not in (None, self._end) else []
        output = defuse(tool_output, (*self._control, *_RESPONSE_TAGS))
        return closing + self._encode(self._before + output + self._after)

    def decode(self, ids: Sequence[int]) -> str:
        """Text with control tokens shown; ids outside the vocabulary show as the replacement character."""
        runs = groupby(ids, key=lambda token: 0 <= token < self.vocab_size)
        return "".join(self._decode_known(list(run)) if known else REPLACEMENT * len(list(run)) for known, run in runs)

    def _decode_known(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _safe(self, message: Message) -> Message:
        if message["role"] == "system":
            return message
        return {**message, "content": defuse(message["content"], self._control)}

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def read_call(text: str) -> Call:
    """`{"name": text, "arguments": object}`; ValueError says what is wrong, in words for the policy."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise ValueError('it must be an object with "name" and "arguments"')
    if not isinstance(found.get("arguments"), dict):
        raise ValueError('"arguments" must be an object')
    return Call(tool=found["name"], arguments=found["arguments"])


def defuse(text: str, tokens: Sequence[str]) -> str:
    """`text` in which no control token is spelled: each gets a zero-width space behind its first character."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    for token in tokens:
        text = text.replace(token, token[:1] + DEFUSED + token[1:])
    return text


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"no tokenizer can be loaded from {folder}: {error}") from error
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer in {folder} has no chat template: use an instruct model, or renderer: tiny")
    return tokenizer


def _tool_turn(tokenizer: Any, folder: Path) -> tuple[str, str, int]:
    """What the template writes before and after a tool's output, up to where the policy goes on, and the id of the
    token that closes the policy's turn."""
    messages = [
        {"role": "user", "content": _USER},
        {"role": "assistant", "content": _ASSISTANT},
        {"role": "tool", "content": _OUTPUT},
    ]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    _, _, behind = text.rpartition(_ASSISTANT)
    before, found, after = behind.partition(_OUTPUT)
    ids = tokenizer(before, add_special_tokens=False)["input_ids"]
    if _RESPONSE_TAGS[0] not in before or not found or ids[0] not in _control_tokens(tokenizer):
        raise UserError(
            f"the chat template of {folder} has no tool turns in the hermes format (as the Qwen family has): "
            "renderer: hermes cannot use it"
        )
    end: int = ids[0]
    return before.removeprefix(tokenizer.convert_ids_to_tokens(end)), after, end


def _control_tokens(tokenizer: Any) -> dict[int, str]:
    added = tokenizer.added_tokens_decoder.items()
    return {token: str(known.content) for token, known in added if known.special}


def _end_of_sequence_ids(folder: Path, tokenizer: Any) -> set[int]:
    """The tokenizer's own, and those that the model's generation_config.json names."""
    try:
        found = json.loads((folder / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except FileNotFoundError:
        found = None
    named = found if isinstance(found, list) else [found]
    return {token for token in (*named, tokenizer.eos_token_id) if isinstance(token, int)}
