"""Small controllers: they read the store and write to it as the real ones do, in the order that recordings show.

One rule: a controller writes status and the objects that it owns, and never what a client declared. Time is real but
short: what a cluster does in seconds happens here in tens of milliseconds.
"""
