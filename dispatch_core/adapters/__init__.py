"""What a scheduler must offer, and the shared means of the adapters that do.

One rule: an adapter carries out and reports, it never decides. It knows the record's values, no store, and no other
adapter. `contract` is what the supervisor calls; `shared` takes one listing for all jobs of a connection; `conformance`
is the suite that any adapter is run against.
"""
