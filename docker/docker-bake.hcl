// The image tree, written once: base -> cuda -> jax -> te, dali, devel, profiling, models -> devcontainer (cuda, te and dali
// only where there is a GPU). `nightjar-ci images list` prints it, `images build` builds it, tests/docker test each image with
// its parents' tests. Pins stand in versions.json, Python packages in locks/, the layers that they form in layers.txt.
//
//   docker buildx bake --file docker/versions.json --file docker/docker-bake.hcl --print
//
// Each target of the tree is a matrix over FLAVORS, PYTHONS and ARCHS: a cell is called jax-cuda12-py313-amd64, and the
// group `jax` is the one that FLAVOR, IMAGE_PYTHON and IMAGE_ARCH choose. An image is tagged nightjar/TARGET:FLAVOR, with
// -py312 or -arm64 behind it where that is not the default.

variable "FLAVOR" {
  default = "cpu" // locks/jax-FLAVOR.txt: the same tree with another lock
}

variable "IMAGE_PYTHON" {
  default = DEFAULT_PYTHON
}

variable "IMAGE_ARCH" {
  default = DEFAULT_ARCH
}

variable "BASE_IMAGE" {
  default = "" // the ground floor; GROUND_FLOORS of versions.json where empty
}

variable "DEBIAN_SNAPSHOT" {
  default = "" // an archive of Debian's past, http://snapshot.debian.org/archive: OS packages are those of DEBIAN_DAY
}

variable "NSYS" {
  default = "none" // debian: Nsight Systems of Debian's non-free archive in the base image, and so in all
}

variable "REVISION" {
  default = "" // the git commit, for the label
}

variable "SOURCE" {
  default = "" // address of the repository, for the label
}

variable "LOCK_DIGESTS" {
  default = "{}" // JSON, lock name to SHA-256: checked in the build, and for the label
}

variable "FLAVORS" {
  default = ["cpu", "cuda12", "cuda13"]
}

variable "GPU_FLAVORS" {
  default = ["cuda12", "cuda13"]
}

variable "PYTHONS" {
  default = ["3.12", "3.13"]
}

variable "ARCHS" {
  default = ["amd64", "arm64"]
}

variable "BASE_DIGEST" {
  default = "" // of the ground floor's manifest, for the label
}

variable "BASE_LAYERS" {
  default = "" // its layers, where it has no manifest: it was never in a registry
}

variable "VERSIONS" {
  default = "{}" // JSON, image to the version of what it is named after, for the label; "" is Nightjar's own
}

variable "JAX_DAY" {
  default = "" // of JAX's nightly wheels in the locks, for the labels; empty where the locks hold releases
}

variable "JAX_EPOCH" {
  default = "" // the start of that day, for the date of the images
}

variable "JAX_COMMIT" {
  default = ""
}

variable "XLA_COMMIT" {
  default = ""
}

variable "PATCHES" {
  default = "" // PACKAGE/FILE@SHA-256 of each file of patches/, for the label
}

variable "JAX_REF" {
  default = "" // of the source image: a commit, branch or tag; JAX_COMMIT, or the tag of the locked release, where empty
}

variable "XLA_REF" {
  default = "" // the commit that this JAX pins, where empty
}

variable "BAZEL_OPTIONS" {
  default = "" // one more option for the build of the source image, such as --remote_cache=ADDRESS
}

// What others write on JAX: each is an image of its own, from the lock with which the nightly tries it.
variable "GUESTS" {
  default = {
    equinox  = { lock = "ecosystem/diffrax", holds = "Equinox, Diffrax, Lineax and Optimistix" }
    levanter = { lock = "ecosystem/levanter", holds = "Levanter and Haliax" }
    maxtext  = { lock = "trainers/maxtext", holds = "MaxText" }
    tunix    = { lock = "trainers/tunix", holds = "Tunix" }
  }
}

// What is built where nobody names an image, and all there is to build.
group "default" {
  targets = FLAVOR == "cpu" ? ["base", "jax", "models"] : ["base", "cuda", "jax", "models"]
}

group "tree" {
  targets = concat(["base", "jax", "devel", "profiling", "models", "devcontainer"], keys(GUESTS), FLAVOR == "cpu" ? [] : ["cuda", "te", "dali"])
}

group "base" { targets = [chosen("base")] }
group "cuda" { targets = [chosen("cuda")] }
group "jax" { targets = [chosen("jax")] }
group "te" { targets = [chosen("te")] }
group "dali" { targets = [chosen("dali")] }
group "devel" { targets = [chosen("devel")] }
group "equinox" { targets = [chosen("equinox")] }
group "levanter" { targets = [chosen("levanter")] }
group "maxtext" { targets = [chosen("maxtext")] }
group "tunix" { targets = [chosen("tunix")] }
group "source" { targets = [chosen("source")] }
group "profiling" { targets = [chosen("profiling")] }
group "models" { targets = [chosen("models")] }
group "devcontainer" { targets = [chosen("devcontainer")] }

function "cell" {
  params = [name, flavor, python, arch]
  result = "${name}-${flavor}-py${replace(python, ".", "")}-${arch}"
}

function "chosen" {
  params = [name]
  result = cell(name, FLAVOR, IMAGE_PYTHON, IMAGE_ARCH)
}

function "context" {
  params = [name, flavor, python, arch]
  result = "target:${cell(name, flavor, python, arch)}"
}

function "ground_floor" {
  params = [python, arch]
  result = BASE_IMAGE != "" ? BASE_IMAGE : "${GROUND_FLOORS[python]}${arch == DEFAULT_ARCH ? "" : "-${arch}"}"
}

// The day of the OS packages; empty where they are of no day that can be had again, as those of Ubuntu (apt-day.sh).
function "debian_day" {
  params = [python, arch]
  result = DEBIAN_SNAPSHOT == "" || length(regexall("ubuntu", ground_floor(python, arch))) > 0 ? "" : DEBIAN_DAY
}

// NVIDIA's own images, of whichever registry, bring CUDA, cuDNN and NCCL; then the wheels stay out.
function "cuda_source" {
  params = []
  result = length(regexall("(^|/)nvidia/", BASE_IMAGE)) > 0 ? "image" : "wheels"
}

function "digest" {
  params = [lock]
  result = lookup(jsondecode(LOCK_DIGESTS), lock, "")
}

function "version" {
  params = [name]
  result = lookup(jsondecode(VERSIONS), name, lookup(jsondecode(VERSIONS), "", ""))
}

function "labels" {
  params = [name, flavor, python, arch, lock, description]
  result = {
    "org.opencontainers.image.title"       = "nightjar/${name}"
    "org.opencontainers.image.description" = description
    "org.opencontainers.image.source"      = SOURCE
    "org.opencontainers.image.revision"    = REVISION
    "org.opencontainers.image.version"     = version(name)
    "org.opencontainers.image.base.name"   = ground_floor(python, arch)
    "org.opencontainers.image.base.digest" = BASE_DIGEST
    "nightjar.base.layers"                 = BASE_LAYERS
    "nightjar.debian"                      = debian_day(python, arch)
    "nightjar.flavor"                      = flavor
    "nightjar.jax.day"                     = lock == "base" ? "" : JAX_DAY
    "nightjar.jax.commit"                  = lock == "base" ? "" : JAX_COMMIT
    "nightjar.xla.commit"                  = lock == "base" ? "" : XLA_COMMIT
    "nightjar.patches"                     = contains(["base", "cuda"], name) ? "" : join(" ", [for patch in split(" ", PATCHES) : patch if name == "source" || substr(patch, 0, 4) != "xla/"])
    "nightjar.lock"                        = lock == "" ? "" : "${lock} ${digest(lock)}"
  }
}

function "tags" {
  params = [name, flavor, python, arch]
  result = ["nightjar/${name}:${flavor}${python == DEFAULT_PYTHON ? "" : "-py${replace(python, ".", "")}"}${arch == DEFAULT_ARCH ? "" : "-${arch}"}"]
}

target "_common" {
  output = ["type=docker"]
  args = {
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH // the date of the image
    FILE_EPOCH        = SOURCE_DATE_EPOCH // that of its files: another one would change every layer
    DEBIAN_SNAPSHOT   = DEBIAN_SNAPSHOT
    DEBIAN_DAY        = DEBIAN_SNAPSHOT == "" ? "" : DEBIAN_DAY // else a new day would build anew what has no use for it
  }
}

// Images with JAX bear the date of their nightly JAX.
target "_dated" {
  inherits = ["_common"]
  args     = { SOURCE_DATE_EPOCH = JAX_EPOCH == "" ? SOURCE_DATE_EPOCH : JAX_EPOCH }
}

target "base_cells" {
  inherits   = ["_common"]
  name       = cell("base", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.base"
  contexts = {
    models = "models/nightjar_models" // the doctor
    tools = context("tools", flavor, python, arch)
  }
  args = {
    BASE_IMAGE = ground_floor(python, arch)
    PYTHON = python
    NSYS = NSYS
    LOCK = "base"
    EXPECTED_SHA256 = digest("base")
  }
  tags   = tags("base", flavor, python, arch)
  labels = labels("base", flavor, python, arch, "base", "Debian, Python, pip, uv, git and a non-root user")
}

// The base image without the doctor, pip and uv, on which the builder stage below stands.
target "os_cells" {
  inherits   = ["_common"]
  name       = cell("os", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.base"
  target     = "os"
  args = {
    BASE_IMAGE = ground_floor(python, arch)
    PYTHON = python
  }
  output = ["type=cacheonly"]
}

// The builder stage in which the others install Python packages; it is not an image that anyone runs.
target "tools_cells" {
  inherits   = ["_common"]
  name       = cell("tools", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.tools"
  contexts = {
    os = context("os", flavor, python, arch)
  }
  output = ["type=cacheonly"]
}

target "cuda_cells" {
  inherits   = ["_common"]
  name       = cell("cuda", flavor, python, arch)
  matrix     = { flavor = GPU_FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.cuda"
  contexts = {
    base = context("base", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "jax-${flavor}"
    EXPECTED_SHA256 = digest("jax-${flavor}")
    CUDA = cuda_source()
    CUDA_MAJOR = replace(flavor, "cuda", "")
  }
  tags   = tags("cuda", flavor, python, arch)
  labels = labels("cuda", flavor, python, arch, "jax-${flavor}", "CUDA, cuDNN, NCCL and NVSHMEM that JAX is tested against")
}

target "jax_cells" {
  inherits   = ["_dated"]
  name       = cell("jax", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.jax"
  contexts = {
    below = flavor == "cpu" ? context("base", flavor, python, arch) : context("cuda", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "jax-${flavor}"
    EXPECTED_SHA256 = digest("jax-${flavor}")
  }
  tags   = tags("jax", flavor, python, arch)
  labels = labels("jax", flavor, python, arch, "jax-${flavor}", "JAX, Flax, Optax, Orbax and Grain")
}

// In no group of others: it is built where it is named.
target "source_cells" {
  inherits   = ["_dated"]
  name       = cell("source", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.source"
  contexts = {
    below = flavor == "cpu" ? context("base", flavor, python, arch) : context("cuda", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "jax-${flavor}"
    EXPECTED_SHA256 = digest("jax-${flavor}")
    FLAVOR = flavor
    JAX_REF = JAX_REF != "" ? JAX_REF : JAX_COMMIT != "" ? JAX_COMMIT : "jax-v${version("jax")}"
    XLA_REF = XLA_REF
    BAZEL_OPTIONS = BAZEL_OPTIONS
  }
  tags   = tags("source", flavor, python, arch)
  labels = labels("source", flavor, python, arch, "jax-${flavor}", "JAX and XLA from their repositories, with patches")
}

target "te_cells" {
  inherits   = ["_dated"]
  name       = cell("te", flavor, python, arch)
  matrix     = { flavor = GPU_FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.te"
  contexts = {
    jax = context("jax", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "te-${flavor}"
    EXPECTED_SHA256 = digest("te-${flavor}")
    BELOW = "jax-${flavor}"
  }
  tags   = tags("te", flavor, python, arch)
  labels = labels("te", flavor, python, arch, "te-${flavor}", "TransformerEngine for JAX")
}

target "dali_cells" {
  inherits   = ["_dated"]
  name       = cell("dali", flavor, python, arch)
  matrix     = { flavor = GPU_FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.dali"
  contexts = {
    jax = context("jax", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "dali-${flavor}"
    EXPECTED_SHA256 = digest("dali-${flavor}")
    BELOW = "jax-${flavor}"
  }
  tags   = tags("dali", flavor, python, arch)
  labels = labels("dali", flavor, python, arch, "dali-${flavor}", "NVIDIA DALI beside JAX")
}

target "devel_cells" {
  inherits   = ["_dated"]
  name       = cell("devel", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.devel"
  contexts = {
    jax = context("jax", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "devel"
    EXPECTED_SHA256 = digest("devel")
    BELOW = "base jax-${flavor}"
    BELOW_LOCK = "jax-${flavor}"
    JAX_COMMIT = JAX_COMMIT
    NSYS = NSYS == "none" ? "debian" : "none" // where all images have it, it is there
  }
  tags   = tags("devel", flavor, python, arch)
  labels = labels("devel", flavor, python, arch, "devel", "Compilers, debuggers, Nsight Systems and the sources of JAX and Flax")
}

target "guest_cells" {
  inherits   = ["_dated"]
  name       = cell(guest, flavor, python, arch)
  matrix     = { guest = keys(GUESTS), flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.guest"
  contexts = {
    below = flavor == "cpu" ? context("base", flavor, python, arch) : context("cuda", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = GUESTS[guest].lock
    EXPECTED_SHA256 = digest(GUESTS[guest].lock)
    JAX_LOCK = "jax-${flavor}"
    JAX_SHA256 = digest("jax-${flavor}")
    BELOW = "base"
  }
  tags   = tags(guest, flavor, python, arch)
  labels = labels(guest, flavor, python, arch, GUESTS[guest].lock, GUESTS[guest].holds)
}

target "profiling_cells" {
  inherits   = ["_dated"]
  name       = cell("profiling", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "."
  dockerfile = "docker/Dockerfile.profiling"
  contexts = {
    jax = context("jax", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "profiling"
    EXPECTED_SHA256 = digest("profiling")
    BELOW = "base jax-${flavor}"
  }
  tags   = tags("profiling", flavor, python, arch)
  labels = labels("profiling", flavor, python, arch, "profiling", "Nightjar's profiler on JAX")
}

target "models_cells" {
  inherits   = ["_dated"]
  name       = cell("models", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "."
  dockerfile = "docker/Dockerfile.models"
  contexts = {
    jax = context("jax", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "models"
    EXPECTED_SHA256 = digest("models")
    BELOW = "base jax-${flavor}"
  }
  tags   = tags("models", flavor, python, arch)
  labels = labels("models", flavor, python, arch, "models", "Nightjar's workloads, CI and profiler on JAX")
}

target "devcontainer_cells" {
  inherits   = ["_dated"]
  name       = cell("devcontainer", flavor, python, arch)
  matrix     = { flavor = FLAVORS, python = PYTHONS, arch = ARCHS }
  platforms  = ["linux/${arch}"]
  context    = "docker"
  dockerfile = "Dockerfile.devcontainer"
  contexts = {
    models = context("models", flavor, python, arch)
    tools = context("tools", flavor, python, arch)
  }
  args = {
    LOCK = "dev"
    EXPECTED_SHA256 = digest("dev")
    BELOW = "base models jax-${flavor}"
  }
  tags   = tags("devcontainer", flavor, python, arch)
  labels = labels("devcontainer", flavor, python, arch, "dev", "Where Nightjar is developed")
}
