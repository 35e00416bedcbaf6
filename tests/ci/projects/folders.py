"""Small projects of other people, as folders."""

from collections.abc import Mapping
from pathlib import Path

LIBRARY = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "My_Lib"
version = "1"
requires-python = ">=3.11"
dependencies = ["jax>=0.4", "numpy"]
[project.optional-dependencies]
docs = ["sphinx"]
test = ["parameterized", "pytest>=8"]
[tool.pytest.ini_options]
addopts = "--cov=my_lib -n4"
""",
    "src/my_lib/__init__.py": "import jax\n",
    "tests/test_a.py": "import numpy, scipy.special\nimport my_lib\n\ndef test_a():\n    import optax\n",
    "tests/helper.py": "import torch\n",
    ".venv/lib/tests/test_b.py": "",
}
BENCHMARKS = {"benchmarks/test_speed.py": "def test_sort(benchmark):\n    benchmark(sorted, [2, 1])\n"}
SCRIPT = {
    "train.py": "import jax\nif __name__ == '__main__':\n    print('loss=1')\n",
    "requirements.txt": "jax\nflax>=0.1\n",
}


def write_folder(folder: Path, *contents: Mapping[str, str]) -> Path:
    for files in contents:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return folder
