"""Data sets, how they are spread over clients, and a picture of that."""

from fedwidth.data.catalogue import SETS, load, options_of
from fedwidth.data.own import from_clients, from_dataset, from_tensors
from fedwidth.data.partition import PARTITIONS, make_partition, partition_options
from fedwidth.data.picture import partition_picture
from fedwidth.data.records import IGNORE, Data, Split
from fedwidth.data.shares import Partition, Shares
from fedwidth.data.transforms import Transform
from fedwidth.data.trees import Tree

__all__ = [
    "IGNORE",
    "PARTITIONS",
    "SETS",
    "Data",
    "Partition",
    "Shares",
    "Split",
    "Transform",
    "Tree",
    "from_clients",
    "from_dataset",
    "from_tensors",
    "load",
    "make_partition",
    "options_of",
    "partition_options",
    "partition_picture",
]
