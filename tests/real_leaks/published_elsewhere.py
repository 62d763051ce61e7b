# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Leaks that others published of packages of other registries than PyPI."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.real_leaks.leak_languages import GO, JAVA, NODE, RUST, Leak

LEAKS = (
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
        "go-sqlite3-extension",
        GO,
        "github.com/mattn/go-sqlite3",
        "1.14.47",
        "1.14.48",
        "https://github.com/mattn/go-sqlite3/pull/1426",
        r".*SQLiteConn\)\.(loadExtension|LoadExtension).*|sqlite3_load_extension|sqlite3LoadExtension",
        0.05,
        """import sqlite "github.com/mattn/go-sqlite3"

var connection = opened()

func opened() *sqlite.SQLiteConn {
    made, err := (&sqlite.SQLiteDriver{}).Open(":memory:")
    if err != nil {
        panic(err)
    }
    return made.(*sqlite.SQLiteConn)
}

func step() {
    for number := 0; number < 10; number++ {
        connection.LoadExtension("/usr/lib/sqlite3/a_tokenizer_that_is_not_installed", "")
    }
}
""",
    ),
    Leak(
        "openssl-ex-data",
        RUST,
        "openssl",
        "0.10.59",
        "0.10.60",
        "https://github.com/sfackler/rust-openssl/pull/2102",
        r".*set_ex_data.*",
        0.02,
        """use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContext, SslMethod};

struct Leak {
    connection: Ssl,
    index: Index<Ssl, Vec<u8>>,
}

impl Leak {
    fn new() -> Leak {
        let context = SslContext::builder(SslMethod::tls()).unwrap().build();
        Leak { connection: Ssl::new(&context).unwrap(), index: Ssl::new_ex_index().unwrap() }
    }

    fn step(&mut self) {
        self.connection.set_ex_data(self.index, vec![1; 1000]);
    }
}
""",
    ),
)
