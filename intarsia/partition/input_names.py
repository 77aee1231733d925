"""What the halves of a training graph read, by the program's own names: so reports find the modules of backward's kernels, too."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

_GIVEN = "primals_"  # how AOTAutograd names the inputs of the graph in both halves, with their number from 1
_FAR = 64  # operations that are looked at behind a saved value


def name_inputs(names: list[str], forward: fx.Graph, backward: fx.Graph) -> None:
    """Set `meta["source_name"]` of the halves' inputs: a name of the graph's own inputs, or of a saved value the module that it is from.

    Args:
        names: how the program calls the inputs of the graph, "" for one without a name.
    """
    given = [node for node in forward.find_nodes(op="placeholder") if node.name.startswith(_GIVEN)]
    if len(given) != len(names):
        return  # some are one, or views of one: their numbers say nothing
    known = {f"{_GIVEN}{k}": name for k, name in enumerate(names, 1) if name}
    saved = {node.name: node for node in forward.find_nodes(op="output")[0].all_input_nodes}
    for node in given:
        _set(node, known.get(node.name, ""))
    for node in backward.find_nodes(op="placeholder"):
        made = saved.get(node.name)
        name = known.get(node.name, "")
        _set(node, name or ("" if made is None else _of_module(made, known)))


def _set(node: fx.Node, name: str) -> None:
    if name:
        node.meta["source_name"] = name


def _of_module(node: fx.Node, known: Mapping[str, str]) -> str:
    """`self.layers.0.fc.addmm_3` of a value that the nearest parameter it was computed of puts there; "" where none is near."""
    looked, seen = [node], {node}
    for each in looked:
        name = known.get(each.name, "")
        if name.startswith("self."):
            return f"{name.rpartition('.')[0]}.{node.name}"
        if len(looked) < _FAR:
            new = [n for n in each.all_input_nodes if n not in seen]
            looked += new
            seen.update(new)
    return ""
