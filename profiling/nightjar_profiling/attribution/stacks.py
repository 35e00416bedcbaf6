"""The tree of all Python stacks of a capture, with their device time.

In: the tables of a capture. Out: a `StackTree`. Every distinct call path is one node with the number of its caller's
node, however many programs and frame ids share it. A node's own time is the time of the instructions whose stack ends
there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nightjar_profiling.capture_folder.tables import Tables

Site = tuple[str, int, str]
"""File, line and function of a frame."""

NO_STACK = -1


@dataclass(slots=True)
class StackTree:
    """Nodes in an order in which callers come before callees.

    Attributes:
        parents: node of the caller; NO_STACK at the outermost frame.
        sites: number of the node's site.
        places: the sites, each once.
        nodes: node of a program's frame id.
    """

    parents: list[int] = field(default_factory=list)
    sites: list[int] = field(default_factory=list)
    places: list[Site] = field(default_factory=list)
    nodes: dict[tuple[int, int], int] = field(default_factory=dict)

    def node_of(self, program_id: int | None, frame_id: int | None) -> int:
        """The node of a stack; NO_STACK if there is none."""
        if program_id is None or frame_id is None:
            return NO_STACK
        return self.nodes.get((program_id, frame_id), NO_STACK)

    def path(self, node: int) -> list[int]:
        """Sites from the outermost frame to the node's own."""
        path = []
        while node != NO_STACK:
            path.append(self.sites[node])
            node = self.parents[node]
        return path[::-1]


def build_stacks(tables: Tables) -> StackTree:
    """The tree of all stacks in the frame table; a circle of parents, as a damaged file may hold, is cut."""
    tree = StackTree()
    rows = {
        (row["program_id"], row["frame_id"]): (row["parent_id"], (row["file"], row["line"], row["function"]))
        for row in tables.frames.iter_rows(named=True)
    }
    numbers: dict[Site, int] = {}
    node_of_step: dict[tuple[int, int], int] = {}
    for key in rows:
        chain, key_above = [], key
        while key_above in rows and key_above not in tree.nodes and key_above not in chain:
            chain.append(key_above)
            key_above = (key[0], rows[key_above][0])
        node = tree.nodes.get(key_above, NO_STACK)
        for frame_key in reversed(chain):
            site = rows[frame_key][1]
            if site not in numbers:
                numbers[site] = len(tree.places)
                tree.places.append(site)
            step = (node, numbers[site])
            if step not in node_of_step:
                node_of_step[step] = len(tree.parents)
                tree.parents.append(node)
                tree.sites.append(numbers[site])
            node = tree.nodes[frame_key] = node_of_step[step]
    return tree
