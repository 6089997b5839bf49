"""prorl: train tool-using language models by reinforcement learning, as one Slurm job or on one machine."""

__version__ = "0.1.0"
