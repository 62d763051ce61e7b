// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import java.io.FileOutputStream;
import java.nio.file.Path;
import java.util.Locale;

/** A service with a thread for each request, of which each forgets a block of native memory: see served.h. */
public final class Requests {
    private static final int BLOCK = 16384;
    private static final int THREADS = 4;

    static void handleRequest() {
        Truth.keepNative(BLOCK);
    }

    private static void serve() throws InterruptedException {
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(Requests::handleRequest);
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.load(arguments[1]);
        String name = ProcessHandle.current().pid() + ".tally";
        long forgotten = 0;
        long next = System.nanoTime();
        try (FileOutputStream tally = new FileOutputStream(Path.of(arguments[0], name).toFile())) {
            for (int number = 0;; number++) {
                if (number % 5 == 0) {
                    double now = System.currentTimeMillis() / 1000.0;
                    tally.write(String.format(Locale.ROOT, "%.3f %d%n", now, forgotten).getBytes());
                }
                serve();
                forgotten += THREADS * BLOCK;
                next += 50_000_000;
                Thread.sleep(Math.max(next - System.nanoTime(), 0) / 1_000_000);
            }
        }
    }
}
