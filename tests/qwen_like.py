"""Small tokenizer folders that speak as the Qwen family does: byte-level BPE, its control tokens, its chat format."""

import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
PRETOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TOOLS_BLOCK = (
    "{{ '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\\n<tools>' }}"
    "{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}"
    "{{ '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}'
    "\\n</tool_call><|im_end|>\\n' }}"
)
TOOL_CALLS = (
    "{% for call in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first else '' }}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) + '}\\n</tool_call>' }}{% endfor %}"
)
TOOL_TURN = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
)
SYSTEM = "{{ messages[0].content if messages[0].role == 'system' else %s }}"


def template(*, default_system: str, drops_thinking: bool, opens_thinking: bool) -> str:
    """`drops_thinking`: thoughts of turns before the last question are left out, as Qwen3's template does."""
    content = "(m.content or '')"
    if drops_thinking:
        content += ".split('</think>')[-1].lstrip('\\n')"
    start = "{{ '<|im_start|>assistant\\n" + ("<think>\\n" if opens_thinking else "") + "' }}"
    system = SYSTEM % repr(default_system)
    return (
        "{% if tools %}{{ '<|im_start|>system\\n' }}" + system + "{{ '\\n\\n' }}" + TOOLS_BLOCK +
        "{% elif messages[0].role == 'system' or " + repr(default_system) + " %}"
        "{{ '<|im_start|>system\\n' }}" + system + "{{ '<|im_end|>\\n' }}{% endif %}"
        "{% for m in messages %}"
        "{% if m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}"
        "{% elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + " + content + " }}" + TOOL_CALLS +
        "{{ '<|im_end|>\\n' }}{% elif m.role == 'tool' %}" + TOOL_TURN + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}" + start + "{% endif %}"
    )  # fmt: skip


KINDS = {
    "instruct": template(default_system="You are a helpful assistant.", drops_thinking=False, opens_thinking=False),
    "hybrid": template(default_system="", drops_thinking=True, opens_thinking=False),
    "thinking": template(default_system="", drops_thinking=True, opens_thinking=True),
}


def build(folder: Path, kind: str) -> Path:
    """A tokenizer folder of one of `KINDS`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(PRETOKEN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    corpus = KINDS["instruct"] + " Calculate the value of the expression. The answer is calculator arguments name"
    tokenizer.train_from_iterator([corpus] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": KINDS[kind],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    eos = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return folder
