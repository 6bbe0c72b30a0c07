"""A client that asks a redis server: ``redis_load.py SOCKET REQUESTS CHECKSUM WORDS BATCH``.

Each line of the file of requests is a key to ask for, or a key and a number to store, WORDS times
over. They go out in batches, each after the replies to the one before. Where all replies have
the checksum (CRC-32) that they should have, it shuts the server down, else it fails.
"""

import socket
import sys
import zlib
from pathlib import Path
from typing import BinaryIO


def request(line: bytes, words: int) -> bytes:
    """Return a line of the file as the server expects it (RESP)."""
    key, *number = (int(word) for word in line.split())
    if not number:
        return b"*2\r\n$3\r\nGET\r\n$11\r\nkey:%07d\r\n" % key
    value = b"%012d" % number[0] * words
    return b"*3\r\n$3\r\nSET\r\n$11\r\nkey:%07d\r\n$%d\r\n%b\r\n" % (key, len(value), value)


def checksum_of_reply(replies: BinaryIO, checksum: int) -> int:
    """Read one reply (a line, or a line and a value); return the checksum with it."""
    line = replies.readline()
    if line.startswith(b"$"):
        line += replies.read(int(line[1:]) + 2)
    return zlib.crc32(line, checksum)


def main() -> int:
    """Return 0 where all replies are right."""
    path, requests, expected, words, batch = sys.argv[1:]
    asked = Path(requests).read_bytes().splitlines()
    checksum = 0
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        replies = server.makefile("rb")
        for start in range(0, len(asked), int(batch)):
            together = asked[start : start + int(batch)]
            server.sendall(b"".join(request(line, int(words)) for line in together))
            for _ in together:
                checksum = checksum_of_reply(replies, checksum)
        if checksum != int(Path(expected).read_text()):
            sys.stderr.write("redis_load: the server's replies are wrong\n")
            return 1
        server.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
    return 0


sys.exit(main())
