"""Reads requests as replicas do, for who compares: batches of messages in, what they mean out.

A batch is its number of messages and each with its length before it; the answer is, of each, the
message without what nobody knows, with its length before it, or 2^32-1 if it cannot be read. All
numbers are u32, little-endian.
"""

import struct
import sys

from google.protobuf.message import DecodeError

from proto.prefixlb.v1.inference_pb2 import GenerateRequest


def answer(message: bytes) -> bytes:
    try:
        request = GenerateRequest.FromString(message)
    except DecodeError:
        return b"\xff" * 4
    request.DiscardUnknownFields()
    meaning = request.SerializeToString()
    return struct.pack("<I", len(meaning)) + meaning


def main() -> None:
    come, go = sys.stdin.buffer, sys.stdout.buffer

    def number() -> int:
        return int.from_bytes(come.read(4), "little")

    while count := number():
        go.write(b"".join([answer(come.read(number())) for _ in range(count)]))
        go.flush()


if __name__ == "__main__":
    main()
