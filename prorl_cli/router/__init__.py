"""Grants every policy turn a lease on one engine: by load, measured speed, weight version and session."""

from prorl_cli.router.state import Ask, Gate, Grant, Release, Router

__all__ = ["Ask", "Gate", "Grant", "Release", "Router"]
