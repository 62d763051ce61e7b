# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Leaks that others published of packages on PyPI."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.real_leaks.leak_languages import PYTHON, Leak

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
    Leak(
        "ujson-integer",
        PYTHON,
        "ujson",
        "5.11.0",
        "5.12.1",
        "https://github.com/ultrajson/ultrajson/commit/4baeb950df780092bd3c89fc702a868e99a3a1d2",
        r"ujson\.cpython-.*",
        0.05,
        """import ujson

DIGITS = "1" + "0" * 3000

def step():
    ujson.loads(DIGITS)
""",
    ),
    Leak(
        "ujson-dump",
        PYTHON,
        "ujson",
        "5.12.0",
        "5.12.1",
        "https://github.com/ultrajson/ultrajson/commit/82af1d0ac01d09aa40c887b460d44b9d9f4bccd9",
        r"objToJSONFile",
        0.1,
        """import ujson

class Closed:
    def write(self, text):
        raise OSError("the peer is gone")

def step():
    try:
        ujson.dump({"rows": ["x" * 100] * 50}, Closed())
    except OSError:
        pass
""",
    ),
    Leak(
        "cbor2-text",
        PYTHON,
        "cbor2",
        "5.8.0",
        "5.9.0",
        "https://github.com/agronholm/cbor2/pull/290",
        r"decode_definite_long_string|CBORDecoder_decode_string|decode_string",
        2.0,
        """import cbor2

DATA = cbor2.dumps("x" * 100_000)

def step():
    cbor2.loads(DATA)
""",
    ),
    Leak(
        "confluent-kafka-headers",
        PYTHON,
        "confluent-kafka",
        "2.12.2",
        "2.14.0",
        "https://github.com/confluentinc/confluent-kafka-python/issues/2167",
        r"Producer_produce|py_headers_\w*to_c|rd_kafka_headers?_\w+",
        0.1,
        """from confluent_kafka import Producer

PRODUCER = Producer({"bootstrap.servers": "127.0.0.1:9200", "queue.buffering.max.messages": 10, "log_level": 0})

def step():
    for _ in range(20):
        try:
            PRODUCER.produce("topic", value=b"hello", headers={"trace": b"x" * 200, "tenant": b"acme"})
        except BufferError:
            pass
""",
    ),
    Leak(
        "tree-sitter-text",
        PYTHON,
        "tree-sitter",
        "0.25.2",
        "0.26.0",
        "https://github.com/tree-sitter/py-tree-sitter/issues/464",
        r"node_get_text",
        0.1,
        """import tree_sitter_python
from tree_sitter import Language, Parser

SOURCE = b"x = 1\\n" * 1000
PARSER = Parser(Language(tree_sitter_python.language()))
TREE = PARSER.parse(lambda offset, point: SOURCE[offset : offset + 1000])

def step():
    TREE.root_node.text
""",
        beside="tree-sitter-python==0.25.0",
    ),
    Leak(
        "pillow-arrow",
        PYTHON,
        "pillow",
        "11.2.1",
        "11.3.0",
        "https://github.com/python-pillow/Pillow/commit/fdfba982c8d514240435f3ecef540939fb97f120",
        r"export_imaging_\w+|ExportArrow\w+PyCapsule",
        0.05,
        """from PIL import Image

IMAGE = Image.new("RGB", (16, 16))

def step():
    for _ in range(30):
        IMAGE.__arrow_c_array__()
""",
    ),
    Leak(
        "orjson-numpy",
        PYTHON,
        "orjson",
        "3.9.5",
        "3.9.7",
        "https://github.com/ijl/orjson/commit/35119dd56207d187ae2946c48ce7ab5d3232d13b",
        r"orjson\.cpython-.*|.*orjson::serialize::numpy.*",
        0.02,
        """import numpy
import orjson

def step():
    try:
        orjson.dumps(numpy.array([1 + 2j] * 50), option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        pass
""",
        beside="numpy==1.26.4",
        why_not="the suspect is where the program makes the array; orjson kept a reference to it",
    ),
    Leak(
        "ujson-default",
        PYTHON,
        "ujson",
        "5.12.0",
        "5.12.1",
        "https://github.com/ultrajson/ultrajson/pull/714",
        r"ujson\.cpython-.*|objToJSON",
        0.05,
        """import ujson

def step():
    for number in range(5):
        text = 300 * "\\u4f60" + str(number)
        ujson.dumps({"x": object()}, default=lambda _: text)
""",
        why_not="the suspect is where the program makes the text; ujson kept a reference to it",
    ),
)
