"""Where rows come from: files that are read as streams, never loaded whole.

Read `open_source` (which files), `file_source` (the way of a row), then one format per module:
`parquet_files`, `csv_files` (with `csv_rows`), `json_lines`, `ipc_files`.
"""

from dovetail_processor.sources.file_source import FileSource
from dovetail_processor.sources.open_source import open_source

__all__ = ["FileSource", "open_source"]
