"""What crosses the shared filesystem: request logs, trajectory logs, step log, weights, membership.

Every file has one writer and is written once; readers re-open and check what they read, and none crashes on damage:
they report it. Refuses to decide anything (that is the coordinator's) and to know names (that is `rundir`'s). Called by
every process of a run and by `prorl status`, `samples`, `spool verify`.
"""
