"""Records over HTTP, for programs and for people.

One rule: whatever is asked is first admitted by `access`, and nothing is written for who is not. Nothing about a job is
decided here: `api` passes on what the store's contract says, `pages` shows records and commits what a person asks.
"""
