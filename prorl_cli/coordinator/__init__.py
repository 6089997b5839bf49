"""Decides what is rolled out, what each training step consists of, and when the run is over.

All policy sits in pure state machines (`machine` joins them) fed with facts and an explicit `now`; `process` is the
thin role around them. Reads index entries of trajectories, never their bodies. Restartable at any moment: the last
manifest, the request logs and the trajectory logs are all it needs.
"""
