"""For all tests: one thread, as runs themselves use. Tiny tensors gain nothing from more, and cores may be shared."""

import torch

torch.set_num_threads(1)
