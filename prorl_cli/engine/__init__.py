"""One policy server behind its gate: ids in; ids, logprobs and version spans out; swaps weights between two tokens.

Refuses to serve a version that it has not proved by digest. Called by agents (`generate`) and by the router (gate).
"""

from prorl_cli.engine.client import GenerateRequest, Generation, generate

__all__ = ["GenerateRequest", "Generation", "generate"]
