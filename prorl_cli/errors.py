"""The exception tree, and the one boundary where errors are classified.

    ProrlError                 exit 1   the run failed
    ├── UserError              exit 2   something the user gave is wrong: what, where, what to do
    │   ├── RecipeError                 (a ValueError) the YAML, all mistakes at once
    │   └── RunDirError                 (an OSError) the run directory
    ├── Unfinished             exit 3   stopped before the end; `prorl resume` goes on
    ├── Fenced                 exit 3   a newer attempt of this run exists; this process must not publish
    ├── CorruptRecord                   a stored record whose bytes do not match their checksum
    └── InfraError                      evidence from outside the policy: carries the error class of a record

A policy's bad behaviour is never an exception here: it is a `StopReason`. Code lets exceptions propagate;
only `boundary` (and the `main` of a process) catches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ProrlError(Exception):
    """Anything prorl reports in words, without a traceback."""

    exit_code = 1


class UserError(ProrlError):
    """Bad input; the message says what is wrong, where, and what to do."""

    exit_code = 2


class RecipeError(UserError, ValueError):
    """One or more mistakes in a recipe, reported together."""


class RunDirError(UserError, OSError):
    """A run directory that is missing, unreadable, unwritable, full, or another version's."""


class Unfinished(ProrlError):
    """The run stopped before its last step and can be resumed."""

    exit_code = 3


class Fenced(ProrlError):
    """This process belongs to an older attempt of the run and must publish nothing more."""

    exit_code = 3


class CorruptRecord(ProrlError):
    """A stored record that fails its checksum; the message names file and offset."""


class InfraError(ProrlError):
    """A failure of the machinery, not of the policy.

    `error_class` is a value of `trajectory.ErrorClass`; the record of the rollout carries it.
    """

    def __init__(self, error_class: str, what: str) -> None:
        super().__init__(f"{error_class}: {what}")
        self.error_class = error_class
        self.what = what


@contextmanager
def boundary(error_class: str, what: str) -> Iterator[None]:
    """Classify whatever escapes the block as `InfraError(error_class)`; a `ProrlError` passes unchanged."""
    try:
        yield
    except ProrlError:
        raise
    except Exception as error:
        raise InfraError(error_class, f"{what}: {type(error).__name__}: {error}") from error
