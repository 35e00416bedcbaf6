"""Nothing here is a test: it imports what `nox -s hugging_face` installs."""

collect_ignore_glob = ["*.py"]
