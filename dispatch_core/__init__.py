"""dispatch: a supervisor for long jobs on slow schedulers."""
