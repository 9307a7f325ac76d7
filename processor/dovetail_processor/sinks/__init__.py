"""Where results go: a log that can be followed, Parquet files, or a count with a checksum.

Read `sink` (the promise), then `parquet`, `log`, `counting`, `checksum`.
"""

from dovetail_processor.sinks.checksum import checksum
from dovetail_processor.sinks.counting import CountingSink
from dovetail_processor.sinks.log import LogSink
from dovetail_processor.sinks.output_folder import claim_output, prepare_output
from dovetail_processor.sinks.parquet import ParquetSink
from dovetail_processor.sinks.sink import Sink, SinkTotals

__all__ = [
    "CountingSink",
    "LogSink",
    "ParquetSink",
    "Sink",
    "SinkTotals",
    "checksum",
    "claim_output",
    "prepare_output",
]
