"""The simulator's own parts can fail: its laws speak when they must, and its world does what it says."""
