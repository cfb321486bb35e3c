"""Preferences that contradict one another: a is better than b, b than c, and c than a.

The responses to one prompt are the nodes of a graph, whose edges lead from the better response of a
record to the worse one. Records whose labels are all right have no cycle. A record is on a cycle if
one of its edges is inside a strongly connected component: a set of responses each of which leads to
every other one. Two contradictory records are the shortest cycle.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from mmrm.data.arrays import Ints


@dataclass(frozen=True, slots=True)
class RecordPreferences:
    """The preferences of one record: the prompt, and pairs of a better and a worse response."""

    prompt: Hashable
    """A key of the prompt with its images."""
    pairs: tuple[tuple[Hashable, Hashable], ...]
    """Keys of responses, the better one first."""


@dataclass(frozen=True, slots=True)
class Contradictions:
    """The records that contradict others, or themselves."""

    on_cycle: npt.NDArray[np.bool_]
    """Whether each record is on a cycle, shape (records,)."""
    contradicted: npt.NDArray[np.bool_]
    """Whether a record prefers the other one of the same two responses, shape (records,)."""
    components: Ints
    """A number for each record that is equal for records on cycles of one component, -1 for a
    record on no cycle, shape (records,)."""

    @property
    def num_components(self) -> int:
        """The number of strongly connected components with more than one response."""
        return len(np.unique(self.components[self.on_cycle]))


def contradictions(records: Sequence[RecordPreferences]) -> Contradictions:
    """Return the records that are on a cycle of preferences.

    Example: of four records with one prompt, a > b, b > c, c > a and c > d, the first three are on
    a cycle. Of a > b and b > a, both are on a cycle, and each is contradicted.
    """
    number_by_node: dict[tuple[Hashable, Hashable], int] = {}
    edges: list[tuple[int, int]] = []
    records_of_edges: list[int] = []
    for index, record in enumerate(records):
        for better, worse in record.pairs:
            if better == worse:
                continue  # copies of one response
            nodes = []
            for response in (better, worse):
                node = (record.prompt, response)
                nodes.append(number_by_node.setdefault(node, len(number_by_node)))
            edges.append((nodes[0], nodes[1]))
            records_of_edges.append(index)

    component_by_node = _components(edges, len(number_by_node))
    known_edges = set(edges)
    on_cycle = np.zeros(len(records), np.bool_)
    contradicted = np.zeros(len(records), np.bool_)
    components = np.full(len(records), -1, np.int64)
    for (better_node, worse_node), index in zip(edges, records_of_edges, strict=True):
        if component_by_node[better_node] == component_by_node[worse_node]:
            on_cycle[index] = True
            components[index] = component_by_node[better_node]
        if (worse_node, better_node) in known_edges:
            contradicted[index] = True
    return Contradictions(on_cycle, contradicted, components)


def _components(edges: Iterable[tuple[int, int]], num_nodes: int) -> Ints:
    """Return the number of the strongly connected component of each node, shape (nodes,)."""
    starts_and_ends = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(starts_and_ends))
    graph = coo_matrix((ones, starts_and_ends.T), shape=(num_nodes, num_nodes))
    if num_nodes == 0:
        return np.empty(0, np.int64)
    _, numbers = connected_components(graph, directed=True, connection="strong")
    return np.asarray(numbers, dtype=np.int64)
