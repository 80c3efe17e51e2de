"""Names of width groups a person recognises: the layer whose output the group is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from fedwidth.plan.node import Node, leaves


def name_groups(model: nn.Module, axes: Mapping[str, list[Node]], groups: Sequence[Node]) -> dict[Node, str]:
    """A distinct name for each group, in the order in which the model's tensors first produce them."""
    wanted, parameters = set(groups), frozenset(dict(model.named_parameters(remove_duplicate=False)))
    names: dict[Node, str] = {}
    taken: dict[str, int] = {}
    for stem, node in _producers(model, axes, parameters):
        for leaf in leaves(node):
            if leaf in wanted and leaf not in names:
                taken[stem] = taken.get(stem, 0) + 1
                names[leaf] = stem if taken[stem] == 1 else f"{stem}#{taken[stem]}"
    order = {leaf: None for nodes in axes.values() for node in nodes for leaf in leaves(node)}
    return {leaf: names[leaf] for leaf in order if leaf in names}


def _producers(
    model: nn.Module, axes: Mapping[str, list[Node]], parameters: frozenset[str]
) -> Iterator[tuple[str, Node]]:
    """(name, output axis): of layers with a weight matrix first, then of other tensors, then any axis at all."""
    for name, nodes in axes.items():
        module_name, _, _ = name.rpartition(".")
        layer = module_name and not any(model.get_submodule(module_name).children())
        if name in parameters and layer and sum(node.size > 1 for node in nodes) > 1:
            yield module_name, nodes[output_dim(model, name, axes)]
    for name, nodes in axes.items():
        module_name, _, short = name.rpartition(".")
        stem = module_name if module_name and short in ("weight", "bias") else name
        if nodes:
            yield stem, nodes[-1]
        for node in nodes:
            yield stem, node


def output_dim(model: nn.Module, name: str, axes: Mapping[str, list[Node]]) -> int:
    """Which dimension of a weight is the layer's output: the one its bias shares, else by the kind of layer."""
    module_name, _, _ = name.rpartition(".")
    module = model.get_submodule(module_name)
    if isinstance(module, nn.Embedding):
        return 1
    bias = axes.get(f"{module_name}.bias")
    if bias and len(bias) == 1:
        mine = set(leaves(bias[0]))
        for dim, node in enumerate(axes[name]):
            if node.size == bias[0].size and set(leaves(node)) == mine:
                return dim
    return 1 if isinstance(module, nn.modules.conv._ConvTransposeNd) else 0
