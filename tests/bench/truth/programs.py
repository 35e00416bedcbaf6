"""Programs of two parts whose costs are known once each part has been timed alone.

A part is one expression over `x` (its argument) and `seed`, a scalar that is zero, and its result is a scalar. All that
costs time in it reads the seed, or else it may run before the clock is read. The second part takes the result of the
first as its seed, so that it runs after it: parts that run side by side share the cores, and then neither has the cost
that it has alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """An expression over `x` and `seed`, and the expression that makes `x` (with `normal(*shape)`)."""

    text: str
    x: str


@dataclass(frozen=True, slots=True)
class Program:
    """Two parts, and on how many devices they run."""

    name: str
    first: Part
    second: Part
    devices: int = 1


def product(size: int) -> Part:
    return Part(text="((x + seed) @ x @ x @ x).sum()", x=f"normal({size}, {size}) / {size}")


def scan(size: int, length: int) -> Part:
    text = "jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x[0] + seed, x)[0].sum()"
    return Part(text=text, x=f"normal({length}, {size}, {size}) / {size}")


def loop(size: int, trips: int) -> Part:
    """A while loop whose number of trips is known only when it runs."""
    body = f"lambda c: (c[0] + 1, jnp.sin(c[1] @ x)), (seed.astype(int) - {trips}, x))"
    return Part(text=f"jax.lax.while_loop(lambda c: c[0] < 0, {body}[1].sum()", x=f"normal({size}, {size}) / {size}")


def branch(size: int, taken: bool) -> Part:
    """A conditional of products and a fusion; which one runs is known only when it runs."""
    branches = "lambda h: h @ x @ x @ x, lambda h: jnp.tanh(jnp.sin(h))"
    sign = ">=" if taken else ">"
    return Part(text=f"jax.lax.cond(seed {sign} 0, {branches}, x + seed).sum()", x=f"normal({size}, {size}) / {size}")


def gradient(size: int, layers: int, wrapped: str) -> Part:
    layer = f"{wrapped}(lambda h, w: jax.nn.gelu(h @ w))"
    loss = f"functools.reduce({layer}, list(ws), ws[0] + seed).sum()"
    text = f"jax.grad(lambda ws: {loss})(x).sum()"
    return Part(text=text, x=f"normal({layers}, {size}, {size}) / {size} ** 0.5")


def elementwise(text: str, rows: int, columns: int = 1024) -> Part:
    return Part(text=f"(lambda h: {text})(x + seed).sum()", x=f"normal({rows}, {columns})")


def attention(heads: int, length: int) -> Part:
    text = "(jax.nn.softmax((x + seed) @ x.mT) @ x).sum()"
    return Part(text=text, x=f"normal({heads}, {length}, 64) / 8")


def nested_scan(size: int, outer: int, inner: int) -> Part:
    body = "lambda h, w: (jnp.tanh(h @ w), None)"
    text = (
        f"jax.lax.scan(lambda h, _: (jax.lax.scan({body}, h, x)[0], None), x[0] + seed, None, length={outer})[0].sum()"
    )
    return Part(text=text, x=f"normal({inner}, {size}, {size}) / {size}")


def scan_gradient(size: int, length: int, wrapped: str) -> Part:
    body = f"{wrapped}(lambda h, w: (jnp.tanh(h @ w), None))"
    text = f"jax.grad(lambda ws: jax.lax.scan({body}, ws[0] + seed, ws)[0].sum())(x).sum()"
    return Part(text=text, x=f"normal({length}, {size}, {size}) / {size} ** 0.5")


def switch(size: int, branch: int) -> Part:
    branches = "[lambda h: h @ x @ x, lambda h: jnp.sin(h), lambda h: jnp.cumsum(h, 0)]"
    text = f"jax.lax.switch(seed.astype(int) + {branch}, {branches}, x + seed).sum()"
    return Part(text=text, x=f"normal({size}, {size}) / {size}")


def collective(text: str, rows: int) -> Part:
    """An expression over the shards `h` of a matrix, with an axis `d` of devices."""
    wrapped = (
        "jax.shard_map(lambda h: {0}, mesh=jax.make_mesh((jax.device_count(),), ('d',)),"
        " in_specs=jax.sharding.PartitionSpec('d'), out_specs=jax.sharding.PartitionSpec('d'))(x + seed).sum()"
    )
    return Part(text=wrapped.format(text), x=f"normal({rows}, 512)")


MATH = "jnp.tanh(jnp.sin(h) * jnp.exp(-h * h))"
ROWS_AND_COLUMNS = "h.sum(0)[0] + h.max(1) + (h * h).sum()"
TAKEN = "h[(jnp.abs(h[:, 0]) * 1e6).astype(int) % h.shape[0]]"
ADDED = "h.at[(jnp.abs(h[:, 0]) * 1e6).astype(int) % h.shape[0]].add(h)"
CONVOLUTION = Part(
    text="jax.lax.conv_general_dilated(x + seed, x[:3, :3, :16, :32], (1, 1), 'SAME',"
    " dimension_numbers=('NHWC', 'HWIO', 'NHWC')).sum()",
    x="normal(32, 32, 32, 16)[..., :16].repeat(2, 2)[:, :, :32]",
)
BATCHED = Part(text="((x + seed) @ x.mT @ x).sum()", x="normal(16, 256, 256) / 256")
INDEPENDENT = Part(text="sum((x * k + seed) @ x for k in range(1, 7)).sum()", x="normal(500, 500) / 500")

PROGRAMS = (
    Program("products, large and small", product(900), product(400)),
    Program("products, small and large", product(400), product(900)),
    Program("products, equal", product(700), product(700)),
    Program("product, reductions", product(600), elementwise(ROWS_AND_COLUMNS, 8192)),
    Program("reductions, product", elementwise(ROWS_AND_COLUMNS, 8192), product(600)),
    Program("fusion, product", elementwise(MATH, 4096), product(600)),
    Program("product, fusion", product(600), elementwise(MATH, 2048)),
    Program("fusions, large and small", elementwise(MATH, 8192), elementwise(MATH, 1024)),
    Program("softmax, product", elementwise("jax.nn.softmax(h)[:, :512]", 4096), product(500)),
    Program("gather, product", elementwise(TAKEN, 16384), product(500)),
    Program("scatter, product", elementwise(ADDED, 8192), product(700)),
    Program("sort, product", elementwise("jnp.sort(h)[:, ::2]", 512), product(600)),
    Program("cumulative sum, product", elementwise("jnp.cumsum(h, 1)", 2048), product(600)),
    Program("transposition, fusion", elementwise("h.T.reshape(h.shape) * h", 8192), elementwise(MATH, 2048)),
    Program("scan, product", scan(300, 20), product(500)),
    Program("scans, long and short", scan(250, 40), scan(250, 10)),
    Program("product, scan", product(500), scan(300, 20)),
    Program("while, product", loop(300, 20), product(500)),
    Program("while, scan", loop(256, 30), scan(300, 10)),
    Program("conditional, product", branch(600, True), product(500)),
    Program("conditional not taken, product", branch(1500, False), product(500)),
    Program("gradient, product", gradient(300, 6, ""), product(600)),
    Program("rematerialised gradient, product", gradient(300, 6, "jax.checkpoint"), product(600)),
    Program("rematerialised gradient, gradient", gradient(300, 6, "jax.checkpoint"), gradient(300, 3, "")),
    Program("convolution, product", CONVOLUTION, product(500)),
    Program("batched products, product", BATCHED, product(500)),
    Program("independent products, reductions", INDEPENDENT, elementwise(ROWS_AND_COLUMNS, 8192)),
    Program("products on 2 devices", product(1000), product(500), devices=2),
    Program("fusion, product on 4 devices", elementwise(MATH, 4096), product(600), devices=4),
    Program("scan, fusion on 2 devices", scan(300, 20), elementwise(MATH, 2048), devices=2),
    Program("products, far apart", product(1100), product(350)),
    Program("attention, product", attention(8, 384), product(500)),
    Program("product, attention", product(700), attention(8, 256)),
    Program(
        "bfloat16 product, product",
        Part(
            "(((x + seed) @ x).astype(jnp.bfloat16) @ x.astype(jnp.bfloat16)).astype(float).sum()",
            "normal(500, 500) / 500",
        ),
        product(400),
    ),
    Program("argmax, fusion", elementwise("(h.argmax(1) + h.argmin(1)).astype(float)", 4096), elementwise(MATH, 2048)),
    Program("variance, product", elementwise("jnp.var(h, 1) + jnp.mean(h, 1)", 8192), product(500)),
    Program("integers, product", elementwise("((h * 1000).astype(int) ** 2 % 7).astype(float)", 8192), product(500)),
    Program(
        "concatenation, product",
        elementwise("jnp.concatenate([h, h[::-1]]) * jnp.concatenate([h[::-1], h])", 4096),
        product(500),
    ),
    Program("largest, product", elementwise("jax.lax.top_k(h, 8)[0]", 1024), product(600)),
    Program(
        "random numbers, product",
        elementwise("jax.random.uniform(jax.random.key(seed.astype(int)), h.shape) * h", 2048),
        product(500),
    ),
    Program(
        "segments, product",
        elementwise("jax.ops.segment_sum(h, (jnp.abs(h[:, 0]) * 1e6).astype(int) % 64, 64)", 8192),
        product(600),
    ),
    Program(
        "pooling, product",
        elementwise("jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (3, 3), (1, 1), 'SAME')", 1024),
        product(600),
    ),
    Program(
        "layer norm, product",
        elementwise("(h - h.mean(1, keepdims=True)) / (h.std(1, keepdims=True) + 1)", 16384),
        product(500),
    ),
    Program(
        "cholesky, product",
        Part("jnp.linalg.cholesky((x + seed) @ x.T + len(x) * jnp.eye(len(x))).sum()", "normal(500, 500)"),
        product(500),
    ),
    Program("fft, product", elementwise("jnp.abs(jnp.fft.rfft(h))", 2048), product(600)),
    Program(
        "map over rows, product",
        elementwise("jax.lax.map(lambda r: jnp.sin(r) * jnp.exp(-r * r), h, batch_size=len(h) // 16)", 4096),
        product(500),
    ),
    Program("nested scans, product", nested_scan(200, 4, 6), product(500)),
    Program("nested scans, scan", nested_scan(200, 6, 6), scan(200, 12)),
    Program(
        "scan of a gather, product",
        Part(
            "jax.lax.scan(lambda h, i: (h + x[(jnp.abs(h[:, 0]) * 1e6).astype(int) % x.shape[0]], None),"
            " x + seed, None, length=8)[0].sum()",
            "normal(2048, 512)",
        ),
        product(500),
    ),
    Program("switch of products, product", switch(700, 0), product(500)),
    Program("switch of sums, product", switch(1500, 2), product(600)),
    Program("gradient of a scan, product", scan_gradient(256, 8, ""), product(600)),
    Program("rematerialised scan, product", scan_gradient(256, 8, "jax.checkpoint"), product(600)),
    Program(
        "rematerialised scan, gradient of a scan", scan_gradient(256, 8, "jax.checkpoint"), scan_gradient(256, 4, "")
    ),
    Program(
        "conditional in a while, product",
        Part(
            "jax.lax.while_loop(lambda c: c[0] < 0,"
            " lambda c: (c[0] + 1, jax.lax.cond(c[0] % 2 == 0, jnp.sin, lambda h: h @ x, c[1])),"
            " (seed.astype(int) - 16, x))[1].sum()",
            "normal(400, 400) / 400",
        ),
        product(500),
    ),
    Program(
        "sum over devices, product on 2",
        collective("jax.lax.psum(jnp.sin(h), 'd') * jnp.ones_like(h)", 8192),
        product(600),
        devices=2,
    ),
    Program(
        "gather over devices, fusion on 2",
        collective("jax.lax.all_gather(h, 'd', tiled=True)[: h.shape[0]] * 2", 8192),
        elementwise(MATH, 2048),
        devices=2,
    ),
    Program(
        "scattered sum, product on 4",
        collective("jax.lax.psum_scatter(jnp.tile(h, (4, 1)), 'd', tiled=True)", 4096),
        product(600),
        devices=4,
    ),
    Program(
        "all to all, product on 4",
        collective("jax.lax.all_to_all(h.reshape(4, -1, 512), 'd', 0, 0).reshape(h.shape) * 2", 8192),
        product(600),
        devices=4,
    ),
    Program(
        "sharded sum, reductions on 4", elementwise("h.sum(0)", 16384), elementwise(ROWS_AND_COLUMNS, 4096), devices=4
    ),
)
