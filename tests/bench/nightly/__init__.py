"""The parts of `nox -s bench_nightly`: locks, mirrors and bisections of nightly days, on loopback."""
