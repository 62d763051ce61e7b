// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;

/** Opens gzip streams, keeps them and never closes them: each holds an Inflater's native memory. */
public class LeakingInflater {
    private static final List<GZIPInputStream> kept = new ArrayList<>();

    static void serveAsset(byte[] asset) throws Exception {
        GZIPInputStream stream = new GZIPInputStream(new ByteArrayInputStream(asset));
        stream.read(new byte[64]);
        kept.add(stream);
    }

    static void handleRequest(byte[] asset) throws Exception {
        serveAsset(asset);
    }

    public static void main(String[] arguments) throws Exception {
        int pause = Integer.parseInt(arguments[0]);
        ByteArrayOutputStream asset = new ByteArrayOutputStream();
        try (GZIPOutputStream gzip = new GZIPOutputStream(asset)) {
            for (int i = 0; i < 50000; i++) {
                gzip.write(i * 31 >> 3);
            }
        }
        while (true) {
            for (int i = 0; i < 200; i++) {
                handleRequest(asset.toByteArray());
            }
            if (kept.size() > 20000) {
                kept.clear();
            }
            Thread.sleep(pause);
        }
    }
}
