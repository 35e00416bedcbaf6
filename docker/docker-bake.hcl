// The image tree, written once: base -> jax -> models. `nightjar-ci images list` prints it, `images build` builds it,
// tests/docker test each image with its parents' tests. Pins stand in versions.json, Python packages in locks/.
//
//   docker buildx bake --file docker/versions.json --file docker/docker-bake.hcl --print
//
// An image is tagged nightjar/TARGET:FLAVOR, such as nightjar/models:cpu.

variable "FLAVOR" {
  default = "cpu" // locks/jax-FLAVOR.txt: the same tree with another lock
}

variable "BASE_IMAGE" {
  default = "nightjar/ground-floor:${DEBIAN_SUITE}"
}

variable "REVISION" {
  default = "" // the git commit, for the label
}

group "default" {
  targets = ["base", "jax", "models"]
}

function "labels" {
  params = [target, description]
  result = {
    "org.opencontainers.image.title"       = "nightjar/${target}"
    "org.opencontainers.image.description" = description
    "org.opencontainers.image.revision"    = REVISION
    "nightjar.flavor"                      = FLAVOR
    "org.opencontainers.image.base.name"   = BASE_IMAGE
  }
}

function "tags" {
  params = [target]
  result = ["nightjar/${target}:${FLAVOR}"]
}

target "_common" {
  output = ["type=docker"]
  args = {
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
}

target "base" {
  inherits   = ["_common"]
  context    = "docker"
  dockerfile = "Dockerfile.base"
  args       = { BASE_IMAGE = BASE_IMAGE }
  tags       = tags("base")
  labels     = labels("base", "Debian, Python and a non-root user")
}

// The builder stage that jax and models install Python packages in; it is not an image that anyone runs.
target "tools" {
  inherits   = ["_common"]
  context    = "docker"
  dockerfile = "Dockerfile.jax"
  target     = "tools"
  contexts   = { base = "target:base" }
  output     = ["type=cacheonly"]
}

target "jax" {
  inherits   = ["_common"]
  context    = "docker"
  dockerfile = "Dockerfile.jax"
  contexts   = { base = "target:base" }
  args       = { LOCK = "jax-${FLAVOR}" }
  tags       = tags("jax")
  labels     = labels("jax", "JAX, Flax, Optax, Orbax and Grain")
}

target "models" {
  inherits   = ["_common"]
  context    = "."
  dockerfile = "docker/Dockerfile.models"
  contexts   = { jax = "target:jax", tools = "target:tools" }
  args       = { LOCK = "jax-${FLAVOR}" }
  tags       = tags("models")
  labels     = labels("models", "Nightjar's workloads, CI and profiler on JAX")
}
