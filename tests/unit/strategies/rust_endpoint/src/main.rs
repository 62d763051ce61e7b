// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

//! A service that forgets so many blocks of 1 KiB with each GET /forget/COUNT, and has a heap profile at any other path.

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicPtr, Ordering};

static LAST: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[inline(never)]
fn forget_block() {
    // The compiler would leave out a block that nothing points to.
    LAST.store(Box::into_raw(Box::new([1u8; 1024])).cast(), Ordering::Relaxed);
}

#[inline(never)]
fn forget(count: usize) {
    (0..count).for_each(|_| forget_block());
}

/// As jemalloc_pprof::JemallocProfCtl::dump_pprof does it.
fn profile() -> Vec<u8> {
    let path = std::env::args().nth(1).expect("the first argument is a file for dumps");
    let name = CString::new(path.clone()).unwrap();
    unsafe { tikv_jemalloc_ctl::raw::write(b"prof.dump\0", name.as_ptr()) }.unwrap();
    let dump = BufReader::new(std::fs::File::open(path).unwrap());
    let found = pprof_util::parse_jeheap(dump, mappings::MAPPINGS.as_deref()).unwrap();
    found.to_pprof(("inuse_space", "bytes"), ("space", "bytes"), None)
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new(&stream).read_line(&mut request)?;
    let path = request.split(' ').nth(1).unwrap_or_default();
    let body = match path.strip_prefix("/forget/") {
        Some(count) => {
            forget(count.parse().unwrap());
            Vec::new()
        }
        None => profile(),
    };
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(2).map_or(0, |text| text.parse().expect("the second argument is a port"));
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("{}", listener.local_addr()?.port());
    listener.incoming().try_for_each(|stream| answer(stream?))
}
