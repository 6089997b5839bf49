"""The stateful python of a box: `session` and `child` are the supervisor's side, `worker` the policy's process.

The worker runs whatever the policy writes, so nothing that it says is trusted beyond its own cell: the session
matches answers by number, keeps the time, and starts another worker where one died. Refuses to wait for it.
"""
