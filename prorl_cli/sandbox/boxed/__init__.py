"""Everything that runs on the box's side of the socket, from the standard library alone.

`zygote` is the warmed parent, `supervisor` the first process of a box, `tool_run` one tool call in a child of
its own, `tools/` one file a tool. The worker shares only `frames` with it. Refuses nothing by itself: what a box
may do is decided before, by the namespaces and limits of `isolation`.
"""
