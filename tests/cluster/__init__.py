"""Tests on a real Slurm, started for them alone: `make test-cluster`."""
