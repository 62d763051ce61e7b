// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// player SCRIPT: as player.c does, with std::vector.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using Block = std::vector<char>;
using Clock = std::chrono::steady_clock;

std::unordered_map<long, Block> blocks;

[[gnu::noinline, gnu::noclone]] void keep(Block &block, std::size_t size) {
    block.resize(size, 1);
    asm volatile("");
}

[[gnu::noinline, gnu::noclone]] void serve(Block &block, std::size_t size) {
    block.resize(size, 1);
    asm volatile("");
}

}

int main(int count, char **arguments) {
    if (count != 2)
        return 2;
    const auto start = Clock::now();
    std::ifstream script(arguments[1]);
    long due, number, size;
    int path;
    char what;
    while (script >> due >> what >> number >> size >> path) {
        std::this_thread::sleep_until(start + std::chrono::milliseconds(due));
        if (what == '-')
            blocks.erase(number);
        else
            (path ? serve : keep)(blocks[number], static_cast<std::size_t>(size));
    }
    for (;;)
        std::this_thread::sleep_for(std::chrono::hours(1));
}
