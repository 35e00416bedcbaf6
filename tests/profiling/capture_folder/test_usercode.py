import pytest

from nightjar_profiling.capture_folder.usercode import user_code_test

INSTALLED = "/opt/venv/lib/python3.11/site-packages/nightjar_models/architectures/gpt.py"


@pytest.mark.parametrize(
    "file",
    [
        *("/home/me/train.py", "train.py", "/data/lib/model.py", "/home/me/bin/train.py"),
        *("C:\\work\\lib\\model.py", "<string>", "<stdin>", "<ipython-input-3-0a1b2c3d>", "/tmp/ipykernel_41/2718.py"),
    ],
)
def test_files_outside_the_installation_are_user_code(file: str) -> None:
    assert user_code_test()(file)


@pytest.mark.parametrize(
    "file",
    [
        INSTALLED,
        "/usr/lib/python3/dist-packages/jax/_src/api.py",
        "/usr/lib/python3.13t/runpy.py",
        "/root/.local/share/uv/python/cpython-3.12/lib/python3.12/contextlib.py",
        "/opt/venv/bin/nightjar-models",
        "C:\\venv\\Lib\\site-packages\\jax\\_src\\api.py",
        "C:\\Python312\\Lib\\contextlib.py",
        "<frozen runpy>",
        "<attrs generated init a.B>",
        "",
    ],
)
def test_installed_files_and_the_standard_library_are_not(file: str) -> None:
    assert not user_code_test()(file)


@pytest.mark.parametrize(
    "pattern",
    [
        "nightjar_models",
        "nightjar_models/*",
        "nightjar_models.architectures.gpt",
        "*.gpt",
        "nightjar_models/architectures/gpt.py",
    ],
)
def test_a_pattern_adds_an_installed_module(pattern: str) -> None:
    assert user_code_test([pattern])(INSTALLED)
    assert not user_code_test([pattern])(INSTALLED.replace("nightjar_models/architectures/gpt", "other/thing"))
