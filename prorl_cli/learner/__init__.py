"""The training process: manifest N → records → one step → weights N; checkpoints, replay, voids, rollback.

Refuses to change a published position: a replay is verified against what stands. `python -m prorl_cli.learner RUN_DIR`
is started by the supervisor, once a rank; nothing imports this room but its own files and tests.
"""
