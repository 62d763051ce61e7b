// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Random;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/**
 * Deflaters SLICES ROUNDS BYTES: four threads make, use and end zlib streams of so many bytes; prints
 * the wall-clock and CPU seconds of each slice of work.
 */
public class Deflaters {
    static void work(int rounds, byte[] input) {
        byte[] packed = new byte[2 * input.length];
        byte[] unpacked = new byte[2 * input.length];
        for (int i = 0; i < rounds; i++) {
            try {
                Deflater deflater = new Deflater(1);
                deflater.setInput(input);
                deflater.finish();
                int size = deflater.deflate(packed);
                deflater.end();
                Inflater inflater = new Inflater();
                inflater.setInput(packed, 0, size);
                inflater.inflate(unpacked);
                inflater.end();
            } catch (java.util.zip.DataFormatException impossible) {
                throw new IllegalStateException(impossible);
            }
        }
    }

    static void slice(int rounds, byte[] input) throws InterruptedException {
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> work(rounds, input));
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    public static void main(String[] arguments) throws Exception {
        int slices = Integer.parseInt(arguments[0]);
        int rounds = Integer.parseInt(arguments[1]);
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        byte[] input = new byte[Integer.parseInt(arguments[2])];
        new Random(1).nextBytes(input);
        slice(rounds, input);
        for (int i = 0; i < slices; i++) {
            long wall = System.nanoTime();
            long cpu = process.getProcessCpuTime();
            slice(rounds, input);
            System.out.println((System.nanoTime() - wall) / 1e9 + " " + (process.getProcessCpuTime() - cpu) / 1e9);
        }
    }
}
