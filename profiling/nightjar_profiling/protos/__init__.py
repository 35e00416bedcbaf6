"""Protobuf declarations of the formats that Nightjar reads and writes, with only the fields that it uses.

After a change to a `.proto` file, regenerate the Python (the compiler is in grpcio-tools), from `profiling/`:
`python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. nightjar_profiling/protos/*.proto`
"""
