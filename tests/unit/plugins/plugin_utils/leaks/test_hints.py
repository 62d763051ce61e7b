# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import hints
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.hints import HintError
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.releases import Seen
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind


def _path(*names: str) -> list[Frame]:
    return [Frame(name, "libx.so", Kind.NATIVE) for name in names]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("inflateInit2_", "Java_java_util_zip_Inflater_init", "[jit]"), ["java-inflater", "zlib"]),
        (("updatewindow", "inflate", "decompress"), ["zlib"]),
        (("malloc_wrapper", "a", "b", "inflate"), []),
        (("readCEN", "ZIP_Open_Generic"), ["java-zip-file"]),
        (("os::malloc", "Unsafe_AllocateMemory0"), ["java-direct-buffer"]),
        (("os::malloc", "jvmtiAllocate"), ["jdwp"]),
        (("operator new", "rocksdb::Arena::AllocateNewBlock"), ["rocksdb"]),
        (("rocksdb::BlockFetcher::ReadBlockContents", "rocksdb::DBImpl::Get"), ["rocksdb-options", "rocksdb"]),
        (("Java_org_rocksdb_ColumnFamilyHandle_getDescriptor", "[jit]"), ["rocksdb-options", "rocksdb"]),
        (("cublasCreate_v2", "ggml_backend_cuda_context::cublas_handle"), ["cublas"]),
        (("at::CachingHostAllocatorImpl<...>::allocate", "at::native::_pin_memory"), ["torch-pinned"]),
        (("cudaHostAlloc", "main"), ["cuda-pinned"]),
        (("std::vector<unsigned char>::resize", "server_prompt_cache::alloc"), ["ggml-prompt-cache"]),
        (("CRYPTO_malloc", "SSL_new"), ["tcnative"]),
        (("os::malloc", "ClassFileParser::parse_stream"), ["class-loaders"]),
        (("calloc", "_dl_allocate_tls", "pthread_create@@GLIBC_2.34"), ["threads"]),
        (("remember", "handle", "main"), []),
    ],
)
def test_known_causes(path: tuple[str, ...], expected: list[str]) -> None:
    assert [hint.id for hint in hints.for_path(hints.load(), _path(*path))] == expected


_KAFKA = ("Java_org_rocksdb_X", "org.apache.kafka.streams.state.internals.RocksDBStore.createOffsetsCFOptions")
_FLINK = ("Java_org_rocksdb_X", "org.apache.flink.state.rocksdb.sstmerge.Compactor.compact")
_NETTY = ("Unsafe_AllocateMemory0", "io.netty.buffer.AdaptiveByteBufAllocator$DirectChunkAllocator.allocate")
_NODE = ("calloc", "node::NodeArrayBufferAllocator::Allocate(unsigned long)")
_ONNX = ("onnxruntime::InferenceSession::Run", "OrtApis::Run")


@pytest.mark.parametrize(
    ("path", "cause", "affected", "sound"),
    [
        (_KAFKA, "kafka-20616", "/opt/libs/kafka-streams-4.3.0.jar:/b.jar", "/opt/libs/kafka-streams-4.3.1.jar"),
        (_FLINK, "flink-39753", "/opt/flink/lib/flink-dist-1.20.4.jar", "/opt/flink/lib/flink-dist-1.20.5.jar"),
        (_FLINK, "flink-39753", "/flink-dist-2.2.1.jar", "/flink-dist-2.2.2.jar"),
        (_FLINK, "flink-39753", "/flink-statebackend-rocksdb-2.0.0.jar", "/flink-dist-1.19.3.jar"),
        (_NETTY, "netty-adaptive", "/lib/netty-buffer-4.2.16.Final.jar", "/lib/netty-all-4.1.115.Final.jar"),
        (_NODE, "node-blob", "/opt/node-v24.16.0-linux-x64/bin/node", "/opt/node-v24.15.0-linux-x64/bin/node"),
        (_NODE, "node-blob", "/nvm/versions/node/v24.19.0/bin/node", "/nvm/versions/node/v24.20.0/bin/node"),
        (_NODE, "node-blob", "/n/versions/node/26.5.1/bin/node", "/n/versions/node/26.6.0/bin/node"),
        (_ONNX, "onnxruntime-run", "/lib/libonnxruntime.so.1.24.1", "/lib/libonnxruntime.so.1.23.2"),
        (_ONNX, "onnxruntime-run", "/lib/onnxruntime_gpu-1.30.0.jar", "/lib/onnxruntime-1.9.1.jar"),
    ],
)
def test_a_cause_of_some_releases_is_told_of_no_other(
    path: tuple[str, ...], cause: str, affected: str, sound: str
) -> None:
    def of(*texts: str) -> list[str]:
        return [hint.title for hint in hints.for_path(hints.load(), _path(*path), Seen(texts)) if hint.id == cause]

    (known,), (unknown,) = of("/usr/bin/x", affected), of("/usr/bin/x", "java -server")
    assert known.endswith(")") and ", if this is " in unknown
    assert of("/usr/bin/x", sound) == []
    assert of(affected, sound) == [known]  # two copies, of which either may be the one


def test_a_library_without_symbols_is_known_by_its_file_and_its_build() -> None:
    module = "onnxruntime_pybind11_state.cpython-312-x86_64-linux-gnu.so"
    path = [Frame("", module, Kind.NATIVE, 0x1234), Frame("_PyEval_EvalFrameDefault", "python3.12", Kind.NATIVE)]

    def of(*build_ids: str) -> list[str]:
        seen = Seen(build_ids=frozenset(build_ids))
        return [hint.title for hint in hints.for_path(hints.load(), path, seen) if hint.id == "onnxruntime-run"]

    assert of("17537b1fc4e76a86ecbb9fd9a49770445b89d33d")[0].endswith(" (ONNX Runtime 1.24.1)")
    assert of("a767894a376411f5a9355fd364812bc07b2fdb79") == []
    assert of()[0].endswith(", if this is ONNX Runtime 1.24 and later")
    other = [Frame("", "libonnxruntime.so.1.23.0", Kind.NATIVE, 0x1234)]
    assert hints.for_path(hints.load(), other) == []


def test_every_cause_of_some_releases_is_tried_above() -> None:
    assert {hint.id for hint in hints.load() if hint.releases is not None} == {
        "kafka-20616",
        "flink-39753",
        "netty-adaptive",
        "node-blob",
        "onnxruntime-run",
    }


def test_a_hint_for_a_verdict_stands_only_where_the_numbers_say_so() -> None:
    def found(answer: Answer, shares: dict[str, float]) -> list[str]:
        return [hint.id for hint in hints.for_verdict(hints.load(), answer, shares)]

    assert found(Answer.NO_LEAK, {"Unexplained": 0.8}) == ["mapped-memory"]
    assert found(Answer.NO_LEAK, {"Unexplained": 0.2, "Fragmentation": 0.8}) == []
    assert found(Answer.NO_LEAK, {}) == []
    assert found(Answer.LEAK, {"Unexplained": 0.8}) == []


def test_our_own_are_complete() -> None:
    assert len(hints.load()) > 10
    for hint in hints.load():
        assert hint.link.startswith("https://") and hint.check.endswith(".")


def test_users_add_and_replace(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(
        "- {id: shop, title: the shop's cache, match: ['Shop::.*'], check: ask the shop team}\n"
        "- {id: zlib, title: ours, match: [never], check: x}\n"
    )
    known = hints.load([tmp_path / "own.yml"])
    (hint,) = hints.for_path(known, _path("operator new", "Shop::add"))
    assert (hint.title, hint.link) == ("the shop's cache", "")
    assert hints.for_path(known, _path("inflate")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not YAML"),
        ("id: x", "is not a list"),
        ("- x", "entry 1 is not a mapping"),
        ("- {id: x, title: y, check: z, match: [a], when: now}", "unknown key 'when'"),
        ("- {id: x, title: y, match: [a]}", "check is missing"),
        ("- {id: x, title: y, check: z, match: ['(']}", "is not a regular expression"),
        ("- {id: x, title: y, check: z, match: a}", "not a list of regular"),
        ("- {id: x, title: y, check: z}", "either match or verdict"),
        ("- {id: x, title: y, check: z, verdict: no-leak}", "verdict, part and share belong together"),
        ("- {id: x, title: y, check: z, match: [a], share: 0.5}", "verdict, part and share belong together"),
        ("- {id: x, title: y, check: z, verdict: leak, part: a, share: 50}", "share is not a number from 0 to 1"),
        (
            "- {id: x, title: y, check: z, verdict: maybe}",
            "one of leak, bursts, overflows, grew, cannot-tell, fills-up, no-leak",
        ),
        ("- {id: x, title: y, check: z, match: [a], within: -1}", "within is not"),
        ("- {id: x, title: y, check: z, match: [a], of: b}", "of, releases and seen belong together"),
        ("- {id: x, title: y, check: z, match: [a], of: b, releases: [new], seen: (c)}", "'new' is none of"),
        ("- {id: x, title: y, check: z, match: [a], of: b, releases: [4.2], seen: (c)}", "4.2 is none of"),
        ("- {id: x, title: y, check: z, match: [a], of: b, releases: ['4'], seen: c}", "seen needs one group"),
        ("- {id: x, title: y, check: z, match: [a], of: b, releases: ['4'], seen: (c), builds: [d]}", "builds are not"),
    ],
)
def test_what_is_no_file_of_hints(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.yml").write_text(text)
    with pytest.raises(HintError, match=message):
        hints.load([tmp_path / "own.yml"])
