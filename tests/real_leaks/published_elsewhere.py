# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Leaks that others published of packages of other registries than PyPI."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.real_leaks.leak_languages import GO, JAVA, NODE, RUBY, RUST, Leak

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
        why_not="the suspect is where the program makes the value; the crate forgot the one that was there before",
    ),
    Leak(
        "napi-canvas-path",
        NODE,
        "@napi-rs/canvas",
        "0.1.90",
        "0.1.91",
        "https://github.com/Brooooooklyn/canvas/pull/1201",
        r"skia\.linux-x64-gnu\.node.*",
        0.1,
        """const { Path2D } = require("@napi-rs/canvas");
const outline = "M10 10 " + "L20 20 ".repeat(100) + "Z";

function step() {
  for (let number = 0; number < 10; number++) new Path2D(outline);
}
""",
        why_not="the extension brings an allocator of its own, mimalloc, of which no profile of malloc tells; the"
        " report says how fast the memory grows that the program maps without malloc",
    ),
    Leak(
        "snappy-sync",
        NODE,
        "snappy",
        "7.2.0",
        "7.2.1",
        "https://github.com/Brooooooklyn/snappy/pull/100",
        r"snappy\.linux-x64-gnu\.node.*",
        0.1,
        """const { compressSync } = require("snappy");
const bytes = Buffer.alloc(2000, "ab");

function step() {
  for (let number = 0; number < 70; number++) compressSync(bytes);
}
""",
    ),
    Leak(
        "netty-tcnative-context",
        JAVA,
        "io.netty:netty-tcnative-classes",
        "2.0.60.Final",
        "2.0.61.Final",
        "https://github.com/netty/netty-tcnative/pull/790",
        r"io\.netty\.internal\.tcnative\.SSLContext\..*|Java_io_netty_internal_tcnative_SSLContext_\w+"
        r"|netty_internal_tcnative_SSLContext_make",
        0.5,
        """import io.netty.internal.tcnative.Library;
import io.netty.internal.tcnative.SSL;
import io.netty.internal.tcnative.SSLContext;
import java.nio.file.Files;

class Leak {
    Leak() throws Exception {
        var file = Files.createTempDirectory("tcnative").resolve("libnetty_tcnative_linux_x86_64.so");
        try (var library = Leak.class.getResourceAsStream("/META-INF/native/" + file.getFileName())) {
            Files.copy(library, file);
        }
        System.load(file.toString());
        Library.initialize("provided", null);
    }

    void step() throws Exception {
        for (int number = 0; number < 100; number++)
            SSLContext.free(SSLContext.make(SSL.SSL_PROTOCOL_TLSV1_2, SSL.SSL_MODE_SERVER));
    }
}
""",
        beside="io.netty:netty-tcnative-boringssl-static:{version}:jar:linux-x86_64",
    ),
    Leak(
        "aws-crt-s3",
        JAVA,
        "software.amazon.awssdk.crt:aws-crt",
        "0.30.8",
        "0.30.9",
        "https://github.com/awslabs/aws-crt-java/issues/823",
        r"software\.amazon\.awssdk\.crt\.s3\.S3Client\..*|Java_software_amazon_awssdk_crt_s3_S3Client_s3ClientNew",
        10.0,
        """import software.amazon.awssdk.crt.io.ClientBootstrap;
import software.amazon.awssdk.crt.io.TlsContext;
import software.amazon.awssdk.crt.s3.S3Client;
import software.amazon.awssdk.crt.s3.S3ClientOptions;

class Leak {
    void step() throws Exception {
        try (TlsContext tls = new TlsContext();
             S3Client client = new S3Client(new S3ClientOptions()
                 .withRegion("eu-west-1")
                 .withClientBootstrap(ClientBootstrap.getOrCreateStaticDefault())
                 .withTlsContext(tls))) {
        }
    }
}
""",
        why_not="the suspect is the making of a TLS context; the S3 client, made elsewhere, did not give it back",
    ),
    Leak(
        "rusqlite-expanded",
        RUST,
        "rusqlite",
        "0.20.0",
        "0.21.0",
        "https://github.com/rusqlite/rusqlite/pull/553",
        r".*expanded_sql.*|sqlite3_expanded_sql|sqlite3VdbeExpandSql",
        0.05,
        """use rusqlite::{params, Connection};

struct Leak {
    connection: Connection,
}

impl Leak {
    fn new() -> Leak {
        Leak { connection: Connection::open_in_memory().unwrap() }
    }

    fn step(&mut self) {
        let mut statement = self.connection.prepare_cached("select ?1, length(?2)").unwrap();
        for number in 0..5 {
            statement.query(params![number, "x".repeat(500)]).unwrap().next().unwrap();
            assert!(statement.expanded_sql().map(|sql| sql.len()).unwrap() > 500);
        }
    }
}
""",
        beside="--features bundled",
    ),
    Leak(
        "ruby-ripper",
        RUBY,
        "ruby",
        "3.1.2",
        "3.3.8",
        "https://github.com/ruby/ruby/pull/8192",
        r"ripper\.so.*",
        0.05,
        """require "ripper"

def step
  10.times { Ripper.parse("def foo") }
end
""",
    ),
    Leak(
        "go-sqlite3-filename",
        GO,
        "github.com/mattn/go-sqlite3",
        "1.14.46",
        "1.14.47",
        "https://github.com/mattn/go-sqlite3/pull/1408",
        r".*SQLiteConn\)\.GetFilename.*",
        0.1,
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
    for number := 0; number < 1000; number++ {
        connection.GetFilename("main")
    }
}
""",
    ),
)
