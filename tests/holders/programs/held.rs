// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// held CASE SECONDS, in Rust: after so long, blocks are lost or held in one way, beside a table of what is kept.
use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

const COUNT: u32 = 3000;

static TABLE: Mutex<Vec<Box<[u8; 400]>>> = Mutex::new(Vec::new());
static CACHE: Mutex<Option<HashMap<u32, Box<[u8; 300]>>>> = Mutex::new(None);

#[inline(never)]
fn remember() {
    for _ in 0..COUNT {
        TABLE.lock().unwrap().push(Box::new([1; 400]));
    }
}

#[inline(never)]
fn kept_by_a_hash_map() {
    let mut cache = HashMap::new();
    for number in 0..COUNT {
        cache.insert(number, Box::new([1; 300]));
    }
    *CACHE.lock().unwrap() = Some(cache);
}

#[inline(never)]
fn lost_by_forget() {
    for _ in 0..COUNT {
        std::mem::forget(std::hint::black_box(Box::new([1u8; 300])));
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    thread::sleep(Duration::from_secs(words[2].parse().unwrap()));
    remember();
    match words[1].as_str() {
        "kept_by_a_hash_map" => kept_by_a_hash_map(),
        _ => lost_by_forget(),
    }
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}
