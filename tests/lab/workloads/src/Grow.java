// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.DataFormatException;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/**
 * A service whose memory grows in the way that its argument names: some MiB a second, up to a limit. It never frees
 * what it holds.
 */
public final class Grow {
    private static final int STEPS_PER_SECOND = 10;
    private static final int MOST_STEPS = 900;
    private static final int MOST_ARENAS = 14;
    private static final int INFLATERS_PER_ARENA = 400;

    private final List<Object> held = new ArrayList<>();
    private final byte[] packed = packed();
    private String way;

    public static void main(String[] args) throws Exception {
        new Grow().run(args[0]);
    }

    // What jsvc calls.

    public void init(String[] args) {
        way = args[0];
    }

    public void start() {
        new Thread(() -> {
            try {
                run(way);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }).start();
    }

    public void stop() {
        Runtime.getRuntime().halt(0);
    }

    public void destroy() { }

    private void run(String way) throws Exception {
        byte[] code = code();
        // Classes are small: they can go on for as long as a slow machine takes for two looks.
        int most = way.equals("metaspace") ? 2 * MOST_STEPS : MOST_STEPS;
        for (int step = 0; step < most || way.equals("slow-leak"); step++) {
            switch (way) {
                case "java-heap" -> held.add(new byte[400_000]);
                case "direct-buffers" -> held.add(ByteBuffer.allocateDirect(400_000));
                case "metaspace" -> loadClasses(code, 30);
                case "threads" -> startThreads(8);
                case "mapped-files" -> held.add(mapped());
                case "native-growth" -> held.add(inflaters(10));
                case "slow-leak" -> held.add(inflaters(1));
                case "malloc-arenas" -> {
                    if (step < MOST_ARENAS) {
                        fillAnArena();
                    }
                }
                case "not-growing" -> inflaters(10).forEach(Inflater::end);
                default -> throw new IllegalArgumentException(way);
            }
            Thread.sleep(1000 / STEPS_PER_SECOND);
        }
        LockSupport.park();
    }

    private void loadClasses(byte[] code, int count) {
        for (int i = 0; i < count; i++) {
            held.add(new Loader().define(code));
        }
    }

    private static void startThreads(int count) {
        for (int i = 0; i < count; i++) {
            stay(() -> { });
        }
    }

    /** Run the work in a thread that never ends. */
    private static void stay(Runnable work) {
        Thread thread = new Thread(() -> {
            work.run();
            while (true) {
                LockSupport.park();
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    /** Another 400 kB of a file, mapped and read. */
    private static ByteBuffer mapped() throws IOException {
        Path path = Files.createTempFile("grow", ".data");
        Files.write(path, new byte[400_000]);
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)) {
            return channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size()).load();
        }
    }

    /** Each holds 7 KiB of state and a 32 KiB window of native memory. */
    private List<Inflater> inflaters(int count) {
        List<Inflater> made = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Inflater inflater = new Inflater();
            inflater.setInput(packed);
            try {
                inflater.inflate(new byte[40_000]);
            } catch (DataFormatException e) {
                throw new IllegalStateException(e);
            }
            made.add(inflater);
        }
        return made;
    }

    /** A thread that used much native memory and freed most of it stays, with its arena. */
    private void fillAnArena() {
        stay(() -> {
            List<Inflater> made = inflaters(INFLATERS_PER_ARENA);
            for (int i = 0; i < made.size() - 1; i++) {
                if (i % 40 != 0) {
                    made.get(i).end();
                }
            }
            synchronized (held) {
                held.add(made);
            }
        });
    }

    private static byte[] packed() {
        byte[] noise = new byte[200_000];
        new Random(1).nextBytes(noise);
        Deflater deflater = new Deflater();
        deflater.setInput(noise);
        deflater.finish();
        byte[] packed = new byte[2 * noise.length];
        int length = deflater.deflate(packed);
        deflater.end();
        return Arrays.copyOf(packed, length);
    }

    private static byte[] code() throws IOException {
        try (InputStream stream = Grow.class.getResourceAsStream("Grow.class")) {
            return stream.readAllBytes();
        }
    }

    private static final class Loader extends ClassLoader {
        Class<?> define(byte[] code) {
            return defineClass("Grow", code, 0, code.length);
        }
    }
}
