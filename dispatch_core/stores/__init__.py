"""Where records are kept. `contract` is what a database must offer; the other rooms are the databases.

One rule: a store compares and sets, it never decides. It knows the record's values, no adapter, and no other store.
"""
