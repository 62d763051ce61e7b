# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A file system, in this process, whose writes wait until they are let go.

It speaks FUSE (linux/fuse.h, protocol 7.23) over /dev/fuse, as little of it as writing new files into one directory
takes. What is written is kept nowhere but in memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import subprocess
import threading
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _UNLINK, _RENAME = 1, 2, 3, 4, 10, 12
_OPEN, _READ, _WRITE, _STATFS, _RELEASE, _INIT = 14, 15, 16, 17, 18, 26
_OPENDIR, _READDIR, _RELEASEDIR, _CREATE, _BATCH_FORGET = 27, 28, 29, 35, 42
_HEADER = struct.Struct("IIQQIIII")
_ROOT = 1


class HangingDisk:
    """Mounted at a directory. ``hangs`` makes each later write wait for ``let_go``; ``waiting`` says that one does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._names: dict[bytes, int] = {}
        self._files: dict[int, bytearray] = {_ROOT: bytearray()}
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"hanging", os.fsencode(path), b"fuse", 0, options.encode()) < 0:
            raise OSError(ctypes.get_errno(), f"cannot mount FUSE at {path}")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def hangs(self) -> None:
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def close(self) -> None:
        self.let_go()
        subprocess.run(["umount", "-l", str(self.path)], check=True)
        self._thread.join(20)
        os.close(self._device)

    def content(self, name: str) -> bytes:
        return bytes(self._files[self._names[name.encode()]])

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 18)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                continue  # interrupted
            _length, operation, unique, node, *_who = _HEADER.unpack_from(request)
            if operation in (_FORGET, _BATCH_FORGET):
                continue
            code, body = 0, b""
            try:
                body = self._answer(operation, node, request[_HEADER.size :])
            except OSError as error:
                code = -(error.errno or errno.EIO)
            answer = struct.pack("IiQ", 16 + len(body), code, unique) + body
            try:
                os.write(self._device, answer)
            except OSError:
                continue  # whoever asked was killed

    def _answer(self, operation: int, node: int, argument: bytes) -> bytes:
        if operation == _INIT:
            return struct.pack("IIIIHHIIHHI7I", 7, 23, 1 << 17, 0, 12, 9, 1 << 17, 1, 0, 0, 0, *[0] * 7)
        if operation == _LOOKUP:
            return self._entry(self._node(argument))
        if operation == _CREATE:
            name = argument[16:].rstrip(b"\0")
            self._names[name] = max(self._files) + 1
            self._files[self._names[name]] = bytearray()
            return self._entry(self._names[name]) + struct.pack("QII", 0, 0, 0)
        if operation in (_GETATTR, _SETATTR):
            valid, _padding, _handle, size = struct.unpack_from("IIQQ", argument.ljust(24, b"\0"))
            if operation == _SETATTR and valid & 8:  # FATTR_SIZE
                del self._files[node][size:]
            return struct.pack("QII", 0, 0, 0) + self._attributes(node)
        if operation == _WRITE:
            _handle, offset, size = struct.unpack_from("QQI", argument)
            return self._write(node, offset, argument[40 : 40 + size])
        if operation == _READ:
            _handle, offset, size = struct.unpack_from("QQI", argument)
            return bytes(self._files[node][offset : offset + size])
        if operation in (_OPEN, _OPENDIR):
            return struct.pack("QII", 0, 1, 0)  # FOPEN_DIRECT_IO: each write is a request
        if operation == _STATFS:
            return struct.pack("QQQQQIIII6I", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0, *[0] * 6)
        if operation == _UNLINK:
            self._node(argument)
            del self._names[argument.rstrip(b"\0")]
            return b""
        if operation == _RENAME:
            old, new = argument[8:].split(b"\0")[:2]
            self._names[new] = self._node(old)
            del self._names[old]
            return b""
        if operation in (_READDIR, _RELEASE, _RELEASEDIR):
            return b""
        raise OSError(errno.ENOSYS, "not served")

    def _write(self, node: int, offset: int, data: bytes) -> bytes:
        if not self._free.is_set():
            self.waiting.set()
            self._free.wait()
        self._files[node][offset : offset + len(data)] = data
        return struct.pack("II", len(data), 0)

    def _node(self, name: bytes) -> int:
        if name.rstrip(b"\0") not in self._names:
            raise OSError(errno.ENOENT, "no such file")
        return self._names[name.rstrip(b"\0")]

    def _entry(self, node: int) -> bytes:
        return struct.pack("QQQQII", node, 1, 0, 0, 0, 0) + self._attributes(node)

    def _attributes(self, node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o600
        size = len(self._files[node])
        return struct.pack("QQQQQQIIIIIIIIII", node, size, size // 512 + 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
