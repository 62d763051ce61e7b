# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Services that are odd in one way: profiled, or refused or put back with the reason; never just called fine."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault

TICKER = "ExecStart=/usr/local/bin/ticker\n"
# Kills the process for the first rename(2) of any of its threads, as an application's own filter may.
KILLS = """
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]
line = struct.Struct("HBBI").pack
lines = line(0x20, 0, 0, 0) + line(0x15, 0, 1, 82) + line(6, 0, 0, {verdict}) + line(6, 0, 0, 0x7FFF0000)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(317, 1, 1, ctypes.byref(Filter(4, lines))) == 0
"""
READY = """
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
    notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
"""
# A client of the system bus that asks for a name (D-Bus Specification, "Message Protocol").
BUS_NAME = """
def text(value): return struct.pack("<I", len(value)) + value + b"\\0"
def padded(value): return value + b"\\0" * (-len(value) % 8)
def call(serial, member, signature=b"", body=b""):
    fields = [(1, b"o", text(b"/org/freedesktop/DBus")), (2, b"s", text(b"org.freedesktop.DBus")),
              (3, b"s", text(member)), (6, b"s", text(b"org.freedesktop.DBus"))]
    fields += [(8, b"g", bytes([len(signature)]) + signature + b"\\0")] * bool(signature)
    packed = b""
    for code, kind, value in fields:
        packed = padded(packed) + bytes([code, 1]) + kind + b"\\0" + value
    head = struct.pack("<cBBBIII", b"l", 1, 0, 1, len(body), serial, len(packed))
    bus.sendall(padded(head + packed) + body)
bus = socket.socket(socket.AF_UNIX)
bus.connect("/run/dbus/system_bus_socket")
bus.sendall(b"\\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\\r\\n")
bus.recv(999)
bus.sendall(b"BEGIN\\r\\n")
call(1, b"Hello")
name = text(b"offheap.fault")
call(2, b"RequestName", b"su", name + b"\\0" * (-len(name) % 4) + struct.pack("<I", 0))
"""
# As daemon(7) has it: the first process ends when the daemon is there.
DAEMON = """
first = os.fork()
if first: os.waitpid(first, 0); os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
"""


def kind(name: str, text: str, says: str = "", **more: object) -> Fault:
    """A service of this Type= or of another way to be started."""
    return Fault(name, "service", "enable", says, service=text, **more)  # type: ignore[arg-type]


def odd(name: str, begin: str = "pass", lines: str = "", says: str = "", **more: object) -> Fault:
    """A program that does something odd, or is kept in an odd way."""
    return Fault(name, "program", "enable", says, begin=begin, lines=lines, fails=bool(says), **more)  # type: ignore[arg-type]


def boxed(lines: str, says: str = "", **more: object) -> Fault:
    """A sandbox of systemd's."""
    return Fault(lines.replace("\n", ", "), "sandbox", "enable", says, lines=lines, fails=bool(says), **more)  # type: ignore[arg-type]


ROWS = [
    # The first to be restarted is watched alone.
    kind("Type=simple", "[Service]\nUser=app\n" + TICKER, everyday=True),
    kind("Type=exec", "[Service]\nType=exec\nUser=app\n" + TICKER),
    kind("Type=notify", "[Service]\nType=notify\nUser=app\n" + TICKER),
    kind("Type=idle", "[Service]\nType=idle\nUser=app\n" + TICKER),
    kind("a template's instance", "[Service]\nUser=app\n" + TICKER, unit="fault-t@one.service"),
    kind(
        "a template's instance with an escaped space",
        "[Service]\nUser=app\n" + TICKER,
        unit="fault-t@a-b\\x20c.service",
    ),
    kind("an escaped name", "[Service]\nUser=app\n" + TICKER, unit="fault-my\\x20own.service", everyday=True),
    kind("a name with colons, systemd 257", "[Service]\nUser=app\n" + TICKER, unit="fault.v1:2_y.service", host="app3"),
    kind("a name with dots and colons", "[Service]\nUser=app\n" + TICKER, unit="fault.v1:2_x.service"),
    kind("RemainAfterExit=yes", "[Service]\nType=simple\nRemainAfterExit=yes\nUser=app\n" + TICKER),
    kind(
        "Type=oneshot, RemainAfterExit=yes",
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n",
        "is active without any process",
        fails=True,
        everyday=True,
    ),
    kind(
        "Type=oneshot, run by a timer",
        "[Service]\nType=oneshot\nExecStart=/bin/true\n",
        active="inactive",
        dumps=False,
    ),
    odd(
        "Type=forking with a PIDFile",
        DAEMON + "open('/run/fault.pid', 'w').write(str(os.getpid()))",
        "Type=forking\nPIDFile=/run/fault.pid",
    ),
    odd("Type=forking without one", DAEMON, "Type=forking", everyday=True),
    odd("Type=notify of a program that tells itself", READY, "Type=notify\nNotifyAccess=all"),
    odd("a slow start", "time.sleep(6)\n" + READY, "Type=notify\nNotifyAccess=all"),
    odd(
        "a program that runs itself again",
        "if len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'again'])",
    ),
    odd("a program that forks often", "for _ in range(50):\n    if not os.fork(): os._exit(0)"),
    odd("prefork workers", "for _ in range(3):\n    if not os.fork(): break"),
    odd("workers of another user", "if not os.fork(): os.setgid(65534); os.setuid(65534)"),
    odd("workers of several users", "for u in 65534, 1:\n    if not os.fork(): os.setgid(u); os.setuid(u); break"),
    odd("a program that becomes another user", "os.setgid(65534); os.setuid(65534)", everyday=True),
    odd("one that changes its root", "os.chroot('/srv'); os.chdir('/')", says="No such file or directory"),
    odd(
        "one that a dump would kill",
        KILLS.replace("{verdict}", "0x80000000"),
        says="did not stay healthy",
        everyday=True,
    ),
    odd("one that may not rename", KILLS.replace("{verdict}", "0x00050001")),
    odd("one that ignores SIGTERM", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "TimeoutStopSec=2"),
    odd("one that blocks all signals", "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))", "TimeoutStopSec=2"),
    odd("one that closes all descriptors", "os.closerange(0, 1000)"),
    odd("one that changes its name", "ctypes.CDLL(None).prctl(15, b'other', 0, 0, 0)"),
    odd("one that changes its directory", "os.chdir('/proc')"),
    odd("one with an umask of 0777", "os.umask(0o777)"),
    odd(
        "one that crashes a second after its start",
        "import threading\nif os.environ.get('MALLOC_CONF'): threading.Timer(1, os.abort).start()",
        says="rolled back and runs as before",
    ),
    odd(
        "one that ends well under the preload",
        "if os.environ.get('MALLOC_CONF'): os._exit(0)",
        says="rolled back and runs as before",
        stops=True,
    ),
    odd("one that hides its environment", "os.environ.clear()"),
    odd("a preload of its own", "pass", "Environment=LD_PRELOAD=/usr/local/lib/liblegacy.so"),
    odd("MALLOC_CONF of its own", "pass", "Environment=MALLOC_CONF=background_thread:false"),
    odd(
        "EnvironmentFile= that sets LD_PRELOAD",
        "pass",
        "EnvironmentFile=-/etc/fault.env",
        inject="echo LD_PRELOAD=/usr/local/lib/liblegacy.so > /etc/fault.env; systemctl restart {unit}",
    ),
    odd("a long environment", "pass", "Environment=LONG=" + "x" * 2000),
    odd("few descriptors", lines="LimitNOFILE=5", says="LimitNOFILE=5", everyday=True),
    odd("16 descriptors", lines="LimitNOFILE=16"),
    odd("small files", lines="LimitFSIZE=4096", says="LimitFSIZE=4096"),
    odd("no thread to be had", lines="User=daemon\nLimitNPROC=1", says="LimitNPROC=1"),
    odd("no core", lines="LimitCORE=0"),
    odd("an address space of 2 GiB", lines="LimitAS=2G"),
    odd("idle priority", lines="Nice=19\nIOSchedulingClass=idle"),
    odd("restarted always", lines="Restart=always\nRestartSec=0"),
    odd("KillMode=process", lines="KillMode=process", says="Say profiled_service_outliving: true if that may be"),
    odd(
        "one that ends each second",
        "import threading; threading.Timer(1, os._exit, [0]).start()",
        "Restart=always\nRestartSec=0\n[Unit]\nStartLimitIntervalSec=0",
        says="ends soon after each start",
    ),
    odd("KillMode=mixed", lines="KillMode=mixed"),
    odd("ExecStartPre= as root", lines="User=app\nExecStartPre=+/bin/true"),
    odd(
        "a wrapper that overwrites LD_PRELOAD",
        "if len(sys.argv) < 2: os.execve(sys.executable, [sys.executable, __file__, 'again'], {})",
        says="is not mapped in its process",
    ),
    boxed("DynamicUser=yes", unit="fault-dynamic\\x20one.service", everyday=True),
    boxed("User=app\nProtectSystem=strict", unit="fault-strict\\x20one.service", everyday=True),
    boxed("User=app\nProtectSystem=full"),
    boxed("TemporaryFileSystem=/opt /var", everyday=True),
    boxed("User=app\nPrivateTmp=yes"),
    boxed("User=app\nPrivateDevices=yes"),
    boxed("User=app\nPrivateNetwork=yes"),
    boxed("User=app\nProtectHome=yes"),
    boxed("User=app\nProtectProc=invisible\nProcSubset=pid"),
    boxed("User=app\nReadOnlyPaths=/"),
    boxed("User=app\nNoExecPaths=/\nExecPaths=/usr /lib /lib64"),
    boxed("User=app\nInaccessiblePaths=/var/lib", says="hides a library or the spool"),
    boxed("User=app\nNoNewPrivileges=yes"),
    boxed("User=app\nCapabilityBoundingSet="),
    boxed("User=app\nRestrictAddressFamilies=AF_INET", says="nobody could ask the agent"),
    boxed("User=app\nSystemCallFilter=@system-service"),
    boxed("User=app\nSystemCallFilter=~rename", says="kills a process that makes the agent's calls"),
    boxed("User=app\nSystemCallArchitectures=native"),
    boxed("User=app\nLockPersonality=yes\nRestrictRealtime=yes\nRestrictSUIDSGID=yes"),
    boxed("User=app\nMemoryDenyWriteExecute=yes"),
    boxed("User=app\nStateDirectory=fault-state\nRuntimeDirectory=fault-run"),
    boxed("User=app\nUMask=0777"),
    boxed("User=app\nPrivateUsers=yes"),
    boxed("User=app\nProtectKernelTunables=yes\nProtectControlGroups=yes"),
]
