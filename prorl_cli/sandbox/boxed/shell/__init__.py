"""The stateful bash of a box: one interactive shell without a terminal, spoken to over a socket pair.

Lines go in and records come out by the socket, which no command sees; what commands print comes through a pipe. So
nothing a command prints can be taken for an answer, and when a record says that it is done, all of its output is in
the pipe. `session` is what the box's first process drives; `script`, `answers`, `ladder` and the choice of `state` are
pure. Refuses nothing that bash accepts: no parser stands before it.
"""
