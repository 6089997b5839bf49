"""The worker: follows its request log, runs every member through INIT, RUN and EVAL, appends to its own log."""

from prorl_cli.rollout.pipeline import Key, Pipeline, Result, Stage, Work

__all__ = ["Key", "Pipeline", "Result", "Stage", "Work"]
