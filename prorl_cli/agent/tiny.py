"""The tiny model's language: one symbol a character, one token a tag, and a Hugging Face tokenizer that agrees.

    <bos><user>What is 1 + 2?<end><assistant><call>1 + 2<endcall><result>3<endresult>3<end>

Plain text never becomes a tag, whatever it spells; characters outside printable ASCII and newline become the
replacement symbol. Needs no library except in `build_tiny_tokenizer`. Used by the agent loop and the warm start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from prorl_cli.agent.render import REPLACEMENT, Call, Message, Tool, Turn

TAGS = ("<bos>", "<end>", "<system>", "<user>", "<assistant>", "<call>", "<endcall>", "<result>", "<endresult>")
SYMBOLS = (*TAGS, REPLACEMENT, "\n", *(chr(code) for code in range(32, 127)))
VOCAB_SIZE = len(SYMBOLS)
BOS, END, SYSTEM, USER, ASSISTANT, CALL, ENDCALL, RESULT, ENDRESULT, UNKNOWN = range(10)
"""`END` closes every message; it is also the padding token, as nothing may be read after it."""

TOOL = "calculator"
"""The only tool this language can call; a call's body is its expression."""

_ID = {symbol: number for number, symbol in enumerate(SYMBOLS)}
_CALL_TAGS = (CALL, ENDCALL, RESULT, ENDRESULT)

CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}"
    "{% if message.role == 'tool' %}<result>{{ message.content }}<endresult>"
    "{% elif message.role == 'assistant' and message.content[-9:] == '<endcall>' %}<assistant>{{ message.content }}"
    "{% elif message.role == 'assistant' and not loop.first and messages[loop.index0 - 1].role == 'tool' %}"
    "{{ message.content }}<end>"
    "{% else %}<{{ message.role }}>{{ message.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<assistant>{% endif %}"
)


def encode(text: str) -> list[int]:
    """Ids of plain text, one a character; no tag comes out of it."""
    return [_ID.get(character, UNKNOWN) for character in text]


def decode(ids: Sequence[int]) -> str:
    """Text of any ids, tags shown; ids outside the alphabet show as the replacement symbol."""
    return "".join(SYMBOLS[token] if 0 <= token < VOCAB_SIZE else REPLACEMENT for token in ids)


class TinyRenderer:
    """The `tiny` renderer; see the module's own page for the format."""

    vocab_size = VOCAB_SIZE
    stop_ids = (END, ENDCALL)

    def start(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """`<bos>`, each message under its role's tag, `<assistant>`; tools are not described: the model knows one."""
        ids = [BOS]
        for message in messages:
            ids += [SYSTEM if message["role"] == "system" else USER, *encode(message["content"]), END]
        return [*ids, ASSISTANT]

    def parse(self, ids: Sequence[int]) -> Turn:
        """An answer holds no call tag; a call is text, one `<call>`, its body, and `<endcall>` as the last token."""
        tags = [token for token in ids if token in _CALL_TAGS]
        body = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        if not tags:
            return Turn(text=decode(body).strip())
        if tags != [CALL, ENDCALL] or ids[-1] != ENDCALL:
            return Turn(text=decode(body).strip(), malformed="unbalanced call")
        opened = body.index(CALL)
        call = Call(tool=TOOL, arguments={"expression": decode(body[opened + 1 :]).strip()})
        return Turn(text=decode(body[:opened]).strip(), call=call)

    def extend(self, tool_output: str, last_id: int | None = None) -> list[int]:
        """`<result>` output `<endresult>`; the policy goes on right behind it."""
        return [RESULT, *encode(tool_output), ENDRESULT]

    def decode(self, ids: Sequence[int]) -> str:
        """See `decode`."""
        return decode(ids)


def build_tiny_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `folder`; `AutoTokenizer` gives the ids of `encode`
    for text that spells no tag."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(vocab=dict(_ID), unk_token=REPLACEMENT))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": TAGS[BOS],
        "eos_token": TAGS[END],
        "pad_token": TAGS[END],
        "unk_token": REPLACEMENT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
