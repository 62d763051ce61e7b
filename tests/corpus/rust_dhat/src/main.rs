// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//! Functions that hold memory, watched by the crate dhat, which writes its file to the path that is the argument.
#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

macro_rules! hold {
    ($name:ident, $number:expr) => {
        #[inline(never)]
        fn $name(kept: &mut Vec<Vec<u8>>) {
            for _ in 0..10 * $number {
                kept.push(Vec::with_capacity(100 * $number + 7));
            }
        }
    };
}
hold!(hold_1, 1);
hold!(hold_2, 2);
hold!(hold_3, 3);
hold!(hold_4, 4);
hold!(hold_5, 5);
hold!(hold_6, 6);
hold!(hold_7, 7);
hold!(hold_8, 8);
hold!(hold_9, 9);
hold!(hold_10, 10);
hold!(hold_11, 11);
hold!(hold_12, 12);

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let _profiler = dhat::Profiler::builder().file_name(path).build();
    let mut kept = Vec::with_capacity(2000);
    hold_1(&mut kept);
    hold_2(&mut kept);
    hold_3(&mut kept);
    hold_4(&mut kept);
    hold_5(&mut kept);
    hold_6(&mut kept);
    hold_7(&mut kept);
    hold_8(&mut kept);
    hold_9(&mut kept);
    hold_10(&mut kept);
    hold_11(&mut kept);
    hold_12(&mut kept);
    std::mem::forget(kept);
}
