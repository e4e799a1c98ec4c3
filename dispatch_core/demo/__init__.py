"""`dispatch demo`: a real Airflow, thrown away again, in which everything that dispatch promises is put to the test.

One rule: the demo believes nothing that dispatch says of itself. It counts the runs by the lines that they wrote, reads
the record past dispatch with plain SQL, and exits with 0 only if every check held.
"""
