"""Data sets, how they are spread over clients, and a picture of that."""

from fedwidth.data.load import SETS, load, options_of
from fedwidth.data.partition import PARTITIONS, make_partition, partition_options
from fedwidth.data.picture import partition_picture
from fedwidth.data.records import IGNORE, Data, Split, from_dataset, from_tensors
from fedwidth.data.shares import Partition, Shares
from fedwidth.data.transforms import Transform

__all__ = [
    "IGNORE",
    "PARTITIONS",
    "SETS",
    "Data",
    "Partition",
    "Shares",
    "Split",
    "Transform",
    "from_dataset",
    "from_tensors",
    "load",
    "make_partition",
    "options_of",
    "partition_options",
    "partition_picture",
]
