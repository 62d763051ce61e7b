// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

//! A service that forgets a route of 64 KiB forty times a second, and counts them in /run/router/forgotten.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SIZE: usize = 64 << 10;

#[inline(never)]
fn remember(routes: &mut Vec<Vec<u8>>) {
    routes.push(vec![1; SIZE]);
}

fn main() -> std::io::Result<()> {
    let mut routes = Vec::with_capacity(1 << 16);
    loop {
        remember(&mut routes);
        std::fs::write("/run/router/forgotten", (routes.len() * SIZE).to_string())?;
        std::thread::sleep(std::time::Duration::from_millis(25));
    }
}
