#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Usage: naming_server.py PORT   says PORT to each client, and then what the client says."""

import asyncio
import sys


async def serve(reader, writer):
    try:
        writer.write(sys.argv[1].encode() + b"\n")
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def main():
    server = await asyncio.start_server(serve, None, int(sys.argv[1]), backlog=1024)
    await server.serve_forever()


asyncio.run(main())
