"""Where a task's data comes from. One file reads each kind of data; `sets/` holds the data sets with a name."""

from thistle.tasks.sources.load import load_dataset, map_classes, read_source

__all__ = ["load_dataset", "map_classes", "read_source"]
