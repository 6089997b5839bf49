"""Makes a run's first weights: the built-in tiny model with its supervised start, or a checked copy of an HF folder.

Refuses models that the roles could not use. `python -m prorl_cli.warmstart RUN_DIR` is started by `launch` and
`resume` before any role; `check_model` is also asked by `validate`.
"""

from prorl_cli.warmstart.checks import check_model

__all__ = ["check_model"]
