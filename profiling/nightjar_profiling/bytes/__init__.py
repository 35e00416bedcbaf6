"""Byte formats: the protobuf wire format, xz and archives."""
