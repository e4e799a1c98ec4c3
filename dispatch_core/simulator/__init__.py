"""The simulator: the real supervisor, client, janitor, `next` and record in a world in which everything goes wrong.

One rule: only the clock, the scheduler, the store's line, and the order in which things happen are simulated. There is
no thread, no real I/O, and one seeded choice tape: (code, seed) is the whole run. How it works, what it found and what
it cannot see is in the README beside this file.
"""
