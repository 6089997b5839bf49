"""The multi-turn loop: how a conversation becomes tokens, how tools are called, how an episode ends."""

from prorl_cli.agent.load import load_renderer
from prorl_cli.agent.loop import Episode, Limits, Policy, run_episode
from prorl_cli.agent.policy import EnginePolicy, Sampling
from prorl_cli.agent.recovery import Box, BoxFactory, LastingBox, Result
from prorl_cli.agent.render import Call, Message, Renderer, Tool, Turn
from prorl_cli.agent.tiny import TinyRenderer, build_tiny_tokenizer
from prorl_cli.agent.toolbox import ToolBox

__all__ = [
    "Box",
    "BoxFactory",
    "Call",
    "EnginePolicy",
    "Episode",
    "LastingBox",
    "Limits",
    "Message",
    "Policy",
    "Renderer",
    "Result",
    "Sampling",
    "TinyRenderer",
    "Tool",
    "ToolBox",
    "Turn",
    "build_tiny_tokenizer",
    "load_renderer",
    "run_episode",
]
