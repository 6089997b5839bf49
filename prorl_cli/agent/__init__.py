"""The multi-turn loop: how a conversation becomes tokens, how tools are called, how an episode ends."""

from prorl_cli.agent.render import Call, Message, Renderer, Tool, Turn
from prorl_cli.agent.tiny import TinyRenderer, build_tiny_tokenizer

__all__ = ["Call", "Message", "Renderer", "TinyRenderer", "Tool", "Turn", "build_tiny_tokenizer"]
