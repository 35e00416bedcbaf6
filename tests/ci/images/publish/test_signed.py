"""Jobs in images of a real registry, where only signed ones may be pulled: by docker, Slurm's nodes and Kubernetes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.executors import Task
from nightjar_ci.executors.docker import DockerExecutor
from nightjar_ci.executors.slurm.slurm_job import SlurmJob, prepare
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.images.publish.index_store import find_image, load_index, refresh_index
from nightjar_ci.images.publish.sign import PASSWORD, Signer, sign_image
from nightjar_ci.images.publish.verify import NotSignedError, pin_signed
from nightjar_ci.web.registry import Repository
from tests.called import call
from tests.ci.images.publish.test_publish import night as publish
from tests.ci.images.publish.test_sign import make_key
from tests.ci.jobs import make_job
from tests.ci.registries import run_registry
from tests.machine import asks
from tests.places import FAKES


@pytest.fixture(scope="module")
@asks("registry", "cosign")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """A registry with a signed night, `jax-cpu`, and its key `ours.pub` beside `other.pub`; `unsigned` has neither."""
    folder = tmp_path_factory.mktemp("signed")
    with run_registry(folder / "registry") as registry:
        unsigned = Repository(f"{registry.host}/team/unsigned")
        for repository in (registry.repository, unsigned):
            publish(repository, folder, "2026-11-20", "0.12.0")
            refresh_index(repository)
        ours = make_key(folder, "ours")
        make_key(folder, "other")
        night = find_image(load_index(registry.repository), "jax-cpu")
        sign_image(night, str(ours), {PASSWORD: ""}, lambda step: None)
        yield registry.repository


@pytest.fixture
def keys(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sorted(tmp_path_factory.getbasetemp().glob("signed*"))[-1]


def test_a_signed_image_keeps_its_digest_should_the_tag_move(repository: Repository, keys: Path) -> None:
    signer, image = Signer(key=str(keys / "ours.pub")), f"{repository.name}:jax-cpu"
    digest = repository.digest("jax-cpu")
    assert pin_signed(image, signer) == f"{repository.name}@{digest}"
    assert pin_signed(f"{repository.name}@{digest}", signer) == f"{repository.name}@{digest}"
    manifest, data = repository.read_manifest("jax-cpu-2026-11-20-linux-amd64")
    platform = repository.digest("jax-cpu-2026-11-20-linux-amd64")
    assert pin_signed(f"{repository.name}@{platform}", signer) == f"{repository.name}@{platform}"
    repository.put_manifest("jax-cpu", data, manifest["mediaType"])  # the tag moves to one platform
    try:
        assert repository.digest("jax-cpu") == platform
        assert pin_signed(image, signer) == f"{repository.name}@{digest}"
    finally:
        index, data = repository.read_manifest(digest)
        repository.put_manifest("jax-cpu", data, index["mediaType"])


def test_an_unsigned_image_another_key_and_a_missing_one_are_refused(repository: Repository, keys: Path) -> None:
    unsigned = f"{repository.name.replace('nightjar', 'unsigned')}:jax-cpu"
    with pytest.raises(NotSignedError, match=r"unsigned:jax-cpu is not pulled: .* has no signature of .*ours\.pub"):
        pin_signed(unsigned, Signer(key=str(keys / "ours.pub")))
    with pytest.raises(NotSignedError, match=r"other\.pub"):
        pin_signed(f"{repository.name}:jax-cpu", Signer(key=str(keys / "other.pub")))
    with pytest.raises(InputError, match="is not a file"):
        pin_signed(f"{repository.name}:jax-cpu", Signer(key=str(keys / "absent.pub")))
    with pytest.raises(InputError):
        pin_signed(f"{repository.name}:absent", Signer(key=str(keys / "ours.pub")))
    with pytest.raises(NightjarError):
        pin_signed("127.0.0.1:9/team/nightjar:jax-cpu", Signer(key=str(keys / "ours.pub")))


def run_in_docker(image: str, folder: Path) -> tuple[Outcome, list[list[str]]]:
    """The outcome of a job with a docker that has no image, and what was asked of docker."""
    folder.mkdir()
    environment = PreparedEnvironment(name=f"image:{image}", kind="image", image=image)
    outcome = DockerExecutor().run(make_job("true", environment=environment.name), environment, folder)
    calls = (Path(os.environ["FAKE_DOCKER_DIR"]) / "calls.jsonl").read_text().splitlines()
    return outcome, [json.loads(line) for line in calls]


def test_docker_pulls_what_is_signed_by_its_digest_and_nothing_else(
    repository: Repository, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER_DIR", str(tmp_path))
    image, pinned = f"{repository.name}:jax-cpu", f"{repository.name}@{repository.digest('jax-cpu')}"
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", str(keys / "other.pub"))
    outcome, calls = run_in_docker(image, tmp_path / "other")
    assert (outcome.state, [call[0] for call in calls]) == ("not_started", ["image"])
    assert "has no signature of" in (outcome.message or "")
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", str(keys / "ours.pub"))
    assert ["pull", "--quiet", pinned] in run_in_docker(image, tmp_path / "signed")[1]
    monkeypatch.setenv("FAKE_DOCKER_IMAGES", pinned)  # as after the pull
    outcome, calls = run_in_docker(image, tmp_path / "pulled")
    assert outcome.exit_code == 0
    assert [call[-1] for call in calls if call[0] == "run"] == [pinned]


def submit(image: str, folder: Path) -> SlurmJob:
    folder.mkdir(exist_ok=True)
    environment = PreparedEnvironment(name=f"image:{image}", kind="image", image=image)
    return prepare(Task(make_job("true", executor="slurm", environment=environment.name), environment, folder, None))


def test_a_node_of_a_cluster_pulls_the_digest_that_was_checked(
    repository: Repository, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, pinned = f"{repository.name}:jax-cpu", f"{repository.name}@{repository.digest('jax-cpu')}"
    job = submit(image, tmp_path / "job")
    job.pin_image()
    assert (job.spec.image, job.cell.variables["NIGHTJAR_IMAGE"]) == (image, image)  # nobody asks for signatures
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", str(keys / "ours.pub"))
    job.pin_image()
    assert (job.spec.image, job.cell.variables["NIGHTJAR_IMAGE"]) == (pinned, pinned)
    squashed = submit("/images/jax.sqsh", tmp_path / "job")
    squashed.pin_image()
    assert squashed.spec.image == "/images/jax.sqsh"
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", str(keys / "other.pub"))
    with pytest.raises(NotSignedError):
        submit(image, tmp_path / "job").pin_image()


def test_manifests_and_batch_scripts_name_the_digest_that_was_checked(
    repository: Repository, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = tmp_path / "m.toml"
    matrix.write_text('schema = "nightjar.matrix/1"\nname = "m"\n[[job]]\nname = "a"\ncommand = ["true"]\n')
    words = [str(matrix), "a*", "--environment", f"image:{repository.name}:jax-cpu"]
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", str(keys / "ours.pub"))
    digest = repository.digest("jax-cpu")
    for kind, named in (("kubernetes", f"{repository.name}@{digest}"), ("slurm", f"{repository.path}:{digest}")):
        done = call(main, "render", kind, *words)
        assert (done.returncode, named in done.stdout) == (0, True)
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", str(keys / "other.pub"))
    for kind in ("kubernetes", "slurm"):
        done = call(main, "render", kind, *words)
        assert (done.returncode, "has no signature of" in done.stderr) == (3, True)
