"""An append-only log of one writer: segments of records, and an index of fixed-size entries that commits them.

Commit order: records, fsync, entries, fsync. Each entry carries the record's *facts* (a few bytes of fixed size), so
that a follower decides without reading bodies. Refuses a second writer, and to append behind anything torn. Called by
the trajectory and request logs.
"""

from prorl_cli.spool.log.format import Layout, Row
from prorl_cli.spool.log.reader import LogReader
from prorl_cli.spool.log.scan import Finding, Kind, scan
from prorl_cli.spool.log.writer import LogWriter

__all__ = ["Finding", "Kind", "Layout", "LogReader", "LogWriter", "Row", "scan"]
