// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
import java.io.BufferedReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import sun.misc.Unsafe;

/** Player SCRIPT: as player.c does, with memory beside the Java heap. */
class Player {
    private static final Map<Long, long[]> blocks = new HashMap<>();
    private static Unsafe unsafe;

    static void take(long[] block, long size) {
        block[0] = unsafe.reallocateMemory(block[0], size);
        if (size > block[1])
            unsafe.setMemory(block[0] + block[1], size - block[1], (byte) 1);
        block[1] = size;
    }

    static void keep(long[] block, long size) {
        take(block, size);
    }

    static void serve(long[] block, long size) {
        take(block, size);
    }

    public static void main(String[] arguments) throws Exception {
        long start = System.nanoTime();
        var field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        unsafe = (Unsafe) field.get(null);
        try (BufferedReader script = Files.newBufferedReader(Path.of(arguments[0]))) {
            for (String line = script.readLine(); line != null; line = script.readLine()) {
                String[] words = line.split(" ");
                long left = Long.parseLong(words[0]) - (System.nanoTime() - start) / 1000000;
                if (left > 0)
                    Thread.sleep(left);
                long number = Long.parseLong(words[2]), size = Long.parseLong(words[3]);
                if (words[1].equals("-")) {
                    unsafe.freeMemory(blocks.remove(number)[0]);
                } else {
                    long[] block = blocks.computeIfAbsent(number, absent -> new long[2]);
                    if (words[4].equals("0"))
                        keep(block, size);
                    else
                        serve(block, size);
                }
            }
        }
        Thread.sleep(Long.MAX_VALUE);
    }
}
