// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.Inflater;

/** Held CASE SECONDS LIBRARY: after so long, native memory is held by Java objects in one way, or lost by native code. */
public class Held {
    private static final int COUNT = 3000;
    private static final List<Inflater> INFLATERS = new ArrayList<>();
    private static final Map<Integer, ByteBuffer> BUFFERS = new HashMap<>();

    private static native void lostByNative();

    private static void keptByAList() {
        for (int number = 0; number < COUNT; number++) {
            Inflater inflater = new Inflater();
            inflater.setInput(new byte[] {0x78});
            INFLATERS.add(inflater);
        }
    }

    private static void keptByAMap() {
        for (int number = 0; number < COUNT; number++) {
            BUFFERS.put(number, ByteBuffer.allocateDirect(600));
        }
    }

    public static void main(String[] words) throws InterruptedException {
        Thread.sleep(1000L * Integer.parseInt(words[1]));
        switch (words[0]) {
            case "kept_by_a_list" -> keptByAList();
            case "kept_by_a_map" -> keptByAMap();
            default -> {
                System.load(words[2]);
                lostByNative();
            }
        }
        Thread.sleep(Long.MAX_VALUE);
    }
}
