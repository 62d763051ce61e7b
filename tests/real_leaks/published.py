# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Leaks that others found, reported and mended, in packages that people use: which versions, and how to meet them.

Each is written after the reproduction in its report: ``step`` is called again and again. In Python and JavaScript it is
a function of that name, in Java a method.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """How packages of a language are had, with ``{package}``, ``{version}`` and ``{directory}``, and how a program with
    them is run; ``debian`` are the host's packages for it."""

    registry: str
    fetch: str
    source: str
    loop: str
    start: str
    debian: str


PYTHON = Language(
    registry="PyPI",
    fetch="{python} -m pip install -q --target {directory} --only-binary=:all: --python-version 3.11"
    " {package}=={version}",
    source="app.py",
    loop="""{code}
import time
while True:
    step()
    time.sleep({pause})
""",
    start="/usr/bin/python3 {directory}/app.py",
    debian="python3",
)
NODE = Language(
    registry="npm",
    fetch="npm install --silent --no-audit --no-fund --prefix {directory} {package}@{version}",
    source="app.js",
    loop="""{code}
setInterval(step, 1000 * {pause})
""",
    start="/usr/bin/node {directory}/app.js",
    debian="nodejs",
)
JAVA = Language(
    registry="Maven Central",
    fetch="mvn -q dependency:copy -Dartifact={package}:{version} -DoutputDirectory={directory}",
    source="App.java",
    loop="""{code}
class App {{
    public static void main(String[] arguments) throws Exception {{
        for (Leak leak = new Leak(); ; Thread.sleep((long) (1000 * {pause})))
            leak.step();
    }}
}}
""",
    start="/usr/bin/java -Xmx128m -cp {directory}/*:{directory} App",
    debian="openjdk-17-jdk-headless",
)


@dataclass(frozen=True)
class Leak:
    """One leak. ``mended`` is a regular expression for the functions that upstream mended, or that call these and have
    no other purpose; ``pause`` are seconds between two steps. Python's small ``objects`` are in profiles only where
    that is asked for."""

    name: str
    language: Language
    package: str
    leaking: str
    fixed: str
    report: str
    mended: str
    pause: float
    code: str
    objects: bool = False


LEAKS = (
    Leak(
        "multidict-istr",
        PYTHON,
        "multidict",
        "6.3.2",
        "6.4.2",
        "https://github.com/aio-libs/multidict/issues/1131",
        r"_ci_key_to_ident|pair_list_calc_identity|pair_list_update_from_dict|istr_\w+",
        0.05,
        """from multidict import CIMultiDict

def step():
    result = CIMultiDict()
    for key, value in CIMultiDict({f"X-Any-{i}": str(i) for i in range(40)}).items():
        result.add(key, value)
""",
        objects=True,
    ),
    Leak(
        "multidict-update",
        PYTHON,
        "multidict",
        "6.2.0",
        "6.4.2",
        "https://github.com/aio-libs/multidict/issues/1134",
        r"_?pair_list_update\w*|_dict_set_number",
        0.02,
        """from multidict import CIMultiDict

def step():
    CIMultiDict().update({f"X-Any-{i}": str(i) for i in range(300)})
""",
        objects=True,
    ),
    Leak(
        "multidict-pop",
        PYTHON,
        "multidict",
        "6.6.3",
        "6.6.4",
        "https://github.com/aio-libs/multidict/issues/1232",
        r"_?md_\w+|htkeys_\w+",
        0.2,
        """from multidict import MultiDict

def step():
    result, headers = MultiDict(), MultiDict({f"X-Any-{i}": str(i) for i in range(300)})
    for key in list(headers.keys()):
        result[key] = headers.pop(key)
""",
        objects=True,
    ),
    Leak(
        "selectolax",
        PYTHON,
        "selectolax",
        "0.3.13",
        "0.3.14",
        "https://github.com/rushter/selectolax/issues/90",
        r"lxb_css_\w+|.*LexborCSSSelector.*",
        0.4,
        """from selectolax.lexbor import LexborHTMLParser

PAGE = "<html><body>" + "<a href='x'>hello</a>" * 50 + "</body></html>"

def step():
    LexborHTMLParser(PAGE).css("a")
""",
    ),
    Leak(
        "msgspec-tuple",
        PYTHON,
        "msgspec",
        "0.14.1",
        "0.14.2",
        "https://github.com/msgspec/msgspec/issues/379",
        r"mpack_decode_(fix|var)tuple|mpack_decode_list",
        0.05,
        """import msgspec

class Row(msgspec.Struct):
    numbers: tuple[int, ...]

DECODER = msgspec.msgpack.Decoder(type=Row)
DATA = msgspec.msgpack.Encoder().encode(Row(tuple(range(1000, 1100))))

def step():
    DECODER.decode(DATA)
""",
        objects=True,
    ),
    Leak(
        "msgspec-struct",
        PYTHON,
        "msgspec",
        "0.13.0",
        "0.13.1",
        "https://github.com/msgspec/msgspec/issues/311",
        r"json_decode_struct_map\w*",
        0.05,
        """import msgspec

class Row(msgspec.Struct):
    number: int
    text: str

DECODER = msgspec.json.Decoder(type=Row)
DATA = msgspec.json.encode(Row(123456, "hello" * 300))

def step():
    DECODER.decode(DATA)
""",
        objects=True,
    ),
    Leak(
        "msgspec-raw",
        PYTHON,
        "msgspec",
        "0.18.6",
        "0.19.0",
        "https://github.com/msgspec/msgspec/pull/709",
        r"Raw_copy",
        0.3,
        """import msgspec

DECODER = msgspec.msgpack.Decoder(type=msgspec.Raw)
DATA = b"\\xda\\x40\\x00" + 0x4000 * b"\\0"

def step():
    DECODER.decode(DATA).copy()
""",
    ),
    Leak(
        "pydantic-adapter",
        PYTHON,
        "pydantic",
        "2.5.2",
        "2.5.3",
        "https://github.com/pydantic/pydantic/issues/8397",
        r"pydantic_core::.*|.*_pydantic_core.*",
        0.2,
        """from pydantic import BaseModel, TypeAdapter

class Bar(BaseModel): ...

class Foo(BaseModel):
    children: list["Foo"]
    bar: Bar

def step():
    for _ in range(2):
        TypeAdapter(list[Foo]).validate_python([{"children": [], "bar": Bar()}])
""",
        objects=True,
    ),
    Leak(
        "zstd-jni-dict",
        JAVA,
        "com.github.luben:zstd-jni",
        "1.5.6-2",
        "1.5.6-3",
        "https://github.com/luben/zstd-jni/issues/310",
        r"com\.github\.luben\.zstd\.ZstdDictCompress\..*",
        2.0,
        """import com.github.luben.zstd.ZstdDictCompress;
import java.nio.ByteBuffer;

class Leak {
    private final ByteBuffer dictionary = ByteBuffer.allocateDirect(1000);

    void step() {
        for (int number = 0; number < 5; number++)
            new ZstdDictCompress(dictionary, 3, true).close();
    }
}
""",
    ),
    Leak(
        "node-rs-crc32",
        NODE,
        "@node-rs/crc32",
        "1.5.1",
        "1.6.0",
        "https://github.com/napi-rs/node-rs/issues/655",
        r"crc32\.linux-x64-gnu\.node.*",
        0.5,
        """const { crc32c } = require("@node-rs/crc32");
const bytes = Buffer.alloc(1000);

function step() {
  for (let number = 0; number < 500; number++) crc32c(bytes);
}
""",
    ),
    Leak(
        "hiredis-map",
        PYTHON,
        "hiredis",
        "3.1.0",
        "3.1.1",
        "https://github.com/redis/hiredis-py/issues/175",
        r"createStringObject|createArrayObject|tryParentize",
        0.25,
        """import hiredis

FIELDS = b"".join(b"$6\\r\\nkey%03d\\r\\n$600\\r\\n%s\\r\\n" % (n, b"x" * 600) for n in range(20))
READER = hiredis.Reader()

def step():
    READER.feed(b"%20\\r\\n" + FIELDS)
    READER.gets()
""",
    ),
    Leak(
        "pandas-json",
        PYTHON,
        "pandas",
        "2.3.2",
        "2.3.3",
        "https://github.com/pandas-dev/pandas/pull/62210",
        r"(json|pandas_datetime)\.cpython-.*",
        0.04,
        """import pandas as pd

DAYS = pd.date_range("1/1/2019", "10/1/2019", freq="D", tz="UTC")
FRAME = pd.DataFrame({"a": [12.34] * len(DAYS)}, index=DAYS).reset_index()

def step():
    FRAME.to_json()
""",
        objects=True,
    ),
)
