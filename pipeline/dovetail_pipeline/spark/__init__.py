"""The clean-up on Spark: the same bins and the same pure function, handed out by Spark.

Read `hands` (Spark as the clean-up's workers), `on_executor` (what runs there), `session` (how
Spark is started), `shipping` (how our code gets there) and `java`. Nothing here imports pyspark
before it is needed, and nothing in this file imports anything: executors read it first.
"""
