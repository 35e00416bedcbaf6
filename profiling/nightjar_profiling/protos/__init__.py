"""Protobuf declarations of the formats that Nightjar reads and writes, with only the fields that it uses.

After a change of a `.proto` file, make the Python again (grpcio-tools brings the compiler), from `profiling/`:
`python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. nightjar_profiling/protos/*.proto`
"""
