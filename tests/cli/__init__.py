"""The command line, as people and scripts meet it."""
