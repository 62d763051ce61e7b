// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;
import java.util.zip.Inflater;

/**
 * Uses memory like a web frontend that serves compressed assets: requests come from its own clock, each unpacks an
 * asset with zlib, and if configured so, one in every few keeps its Inflater forever. That is native memory (7 KiB of
 * state and a 32 KiB window each); the Java heap stays flat.
 */
public final class Frontend {
    private static final int WORKERS = 4;
    private static final int INFLATER_BYTES = 40 * 1024;

    private final int requestsPerSecond = setting("FRONTEND_RATE", 120);
    /** One request in this many leaks; 0: none. */
    private final int leakEvery = setting("FRONTEND_LEAK_EVERY", 0);
    /** Stops leaking, but not serving, at about this size. */
    private final int leakLimitMib = setting("FRONTEND_LEAK_LIMIT_MIB", 600);
    private final int port = setting("FRONTEND_PORT", 8080);

    private final byte[][] assets = new byte[8][];
    private final AtomicLong served = new AtomicLong();
    private final AtomicLong leaked = new AtomicLong();
    private static final List<Inflater> FORGOTTEN = new ArrayList<>();

    /** A GZIPInputStream that hands out its Inflater. */
    private static final class Asset extends GZIPInputStream {
        Asset(InputStream packed) throws IOException {
            super(packed, 4096);
        }

        Inflater inflater() {
            return inf;
        }
    }

    public static void main(String[] arguments) throws IOException {
        new Frontend().run();
    }

    private void run() throws IOException {
        Random random = new Random(1);
        for (int i = 0; i < assets.length; i++) {
            assets[i] = pack(random, 48 * 1024 + i * 8 * 1024);
        }
        ScheduledExecutorService clock = Executors.newScheduledThreadPool(WORKERS);
        long period = TimeUnit.SECONDS.toNanos(1) * WORKERS / Math.max(1, requestsPerSecond);
        for (int worker = 0; worker < WORKERS; worker++) {
            clock.scheduleAtFixedRate(this::handleRequest, period * worker / WORKERS, period, TimeUnit.NANOSECONDS);
        }
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 16);
        server.createContext("/health", exchange -> {
            byte[] answer = health().getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().add("Content-Type", "application/json");
            exchange.sendResponseHeaders(200, answer.length);
            try (OutputStream body = exchange.getResponseBody()) {
                body.write(answer);
            }
        });
        server.start();
        System.out.printf("serving %d requests/s, one in %d leaks, health on port %d%n",
                requestsPerSecond, leakEvery, port);
    }

    private void handleRequest() {
        try {
            long number = served.incrementAndGet();
            serveAsset((int) (number % assets.length), mayLeak(number));
        } catch (IOException | RuntimeException error) {
            System.err.println("request failed: " + error);
        }
    }

    private boolean mayLeak(long number) {
        return leakEvery > 0
                && number % leakEvery == 0
                && leaked.get() * INFLATER_BYTES < leakLimitMib * 1024L * 1024L;
    }

    private int serveAsset(int index, boolean forget) throws IOException {
        Asset asset = new Asset(new ByteArrayInputStream(assets[index]));
        int size = unpack(asset);
        if (forget) {
            // the bug: neither close() nor end(), and still reachable, so no cleaner frees it
            keep(asset.inflater());
        } else {
            asset.close();
        }
        return size;
    }

    private static int unpack(InputStream asset) throws IOException {
        byte[] buffer = new byte[8192];
        int size = 0;
        for (int n = asset.read(buffer); n >= 0; n = asset.read(buffer)) {
            size += n;
        }
        return size;
    }

    private void keep(Inflater inflater) {
        synchronized (FORGOTTEN) {
            FORGOTTEN.add(inflater);
        }
        leaked.incrementAndGet();
    }

    private String health() {
        return String.format("{\"status\": \"ok\", \"served\": %d, \"leaked_inflaters\": %d}%n",
                served.get(), leaked.get());
    }

    private static byte[] pack(Random random, int size) throws IOException {
        byte[] text = new byte[size];
        for (int i = 0; i < size; i++) {
            text[i] = (byte) ('a' + random.nextInt(8));
        }
        ByteArrayOutputStream packed = new ByteArrayOutputStream();
        try (GZIPOutputStream stream = new GZIPOutputStream(packed)) {
            stream.write(text);
        }
        return packed.toByteArray();
    }

    private static int setting(String name, int otherwise) {
        String value = System.getenv(name);
        return value == null || value.isEmpty() ? otherwise : Integer.parseInt(value);
    }
}
