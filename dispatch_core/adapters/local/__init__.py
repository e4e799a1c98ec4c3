"""The local scheduler: a spool directory and one detached runner for each run, with nothing to install and no daemon.

One rule: the spool is the whole truth. Everything in it appears by one rename or one mkdir, so that any number of
supervisors can use it at once, and each can be killed at any moment. `scheduler` is the adapter. `spool`, `leftovers`
and `runner` import the standard library only: a runner is started by path, without the packages above this one, so that
it is up in a few hundredths of a second.
"""
