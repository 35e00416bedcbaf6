"""The parts of `nox -s bench_nightly`: locks and bisections of nightly days, on loopback."""
