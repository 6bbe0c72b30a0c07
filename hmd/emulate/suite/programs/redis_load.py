"""A client that asks a redis server: ``redis_load.py SOCKET REQUESTS CHECKSUM BATCH``.

Sends a file of requests in batches, each after the replies to the one before. Where the replies
have the checksum (CRC-32) that they should have, it shuts the server down, else it fails.
"""

import socket
import sys
import zlib
from pathlib import Path
from typing import BinaryIO


def checksum_of_reply(replies: BinaryIO, checksum: int) -> int:
    """Read one reply (a line, or a line and a value); return the checksum with it."""
    line = replies.readline()
    if line.startswith(b"$"):
        line += replies.read(int(line[1:]) + 2)
    return zlib.crc32(line, checksum)


def main() -> int:
    """Return 0 where all replies are right."""
    path, requests, expected, batch = sys.argv[1:]
    asked = Path(requests).read_bytes().split(b"*")[1:]
    checksum = 0
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        replies = server.makefile("rb")
        for start in range(0, len(asked), int(batch)):
            together = asked[start : start + int(batch)]
            server.sendall(b"*" + b"*".join(together))
            for _ in together:
                checksum = checksum_of_reply(replies, checksum)
        if checksum != int(Path(expected).read_text()):
            sys.stderr.write("redis_load: the server's replies are wrong\n")
            return 1
        server.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
    return 0


sys.exit(main())
