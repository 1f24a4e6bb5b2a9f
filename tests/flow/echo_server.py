#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Usage: echo_server.py PORT [NAME]   says its NAME to each client, and then what the client says."""

import asyncio
import sys


async def serve(reader, writer):
    try:
        writer.write("".join(f"{name}\n" for name in sys.argv[2:]).encode())
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def main():
    server = await asyncio.start_server(serve, None, int(sys.argv[1]), backlog=4096)
    await server.serve_forever()


asyncio.run(main())
