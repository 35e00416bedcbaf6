"""Jraph cell: a graph convolution is a product with the normed adjacency matrix; batches come apart again."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

NODES, EDGES = 300, 2000


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import jraph
    import numpy as np

    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, NODES, size=(2, EDGES))
    values = rng.normal(size=(NODES, 16)).astype(np.float32)
    graph = jraph.GraphsTuple(
        nodes=jnp.asarray(values),
        edges=jnp.ones((EDGES, 1)),
        senders=jnp.asarray(senders),
        receivers=jnp.asarray(receivers),
        globals=jnp.zeros((1, 1)),
        n_node=jnp.array([NODES]),
        n_edge=jnp.array([EDGES]),
    )
    layer = jraph.GraphConvolution(
        update_node_fn=lambda nodes: nodes, add_self_edges=True, symmetric_normalization=True
    )
    convolve = jax.jit(lambda graph: layer(graph).nodes)
    samples = time_calls(lambda: convolve(graph), items=EDGES, unit="edges/s", calls=20)

    adjacency = np.zeros((NODES, NODES))
    np.add.at(adjacency, (receivers, senders), 1.0)
    adjacency += np.eye(NODES)
    into, out = adjacency.sum(axis=1), adjacency.sum(axis=0)
    exact = (adjacency / np.sqrt(into)[:, None] / np.sqrt(out)[None, :]) @ values

    graphs = [graph, graph._replace(nodes=2 * graph.nodes)]
    batch = jraph.batch(graphs)
    padded = jraph.pad_with_graphs(batch, n_node=1000, n_edge=5000, n_graph=4)
    back = jraph.unbatch(jraph.unpad_with_graphs(padded))
    network = jraph.GraphNetwork(update_edge_fn=lambda edges, sent, received, globals_: sent, update_node_fn=None)
    sums = jraph.segment_sum(network(graph).edges, graph.receivers, NODES)
    return Finding(
        checks=[
            Check(
                name="convolution_error",
                value=float(np.abs(np.asarray(convolve(graph)) - exact).max()),
                expected=0.0,
                tolerance=1e-4,
                why="D^-1/2 (A + I) D^-1/2 x, in NumPy",
            ),
            Check(
                name="messages_error",
                value=float(np.abs(np.asarray(sums) - (adjacency - np.eye(NODES)) @ values).max()),
                expected=0.0,
                tolerance=1e-4,
                why="A x: each edge carries its sender",
            ),
            Check(
                name="batch_difference",
                value=float(not jax.tree.all(jax.tree.map(np.array_equal, back, graphs))),
                expected=0.0,
                tolerance=0,
                why="two graphs, padded, come back as they were",
            ),
        ],
        samples=samples,
    )
