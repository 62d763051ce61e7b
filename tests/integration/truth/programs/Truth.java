// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Leaks and a non-leak of a JVM: for each line on stdin one step. */
public class Truth {
    private static final List<Object> kept = new ArrayList<>();

    static native void keepNative(int size);

    static void openStreams(byte[] packed) throws Exception {
        for (int i = 0; i < 32; i++) {
            Inflater inflater = new Inflater();
            inflater.setInput(packed);
            inflater.inflate(new byte[64]);
            kept.add(inflater);
        }
    }

    static void openBuffers() {
        for (int i = 0; i < 64; i++) {
            kept.add(ByteBuffer.allocateDirect(16384));
        }
    }

    static void callNative() {
        for (int i = 0; i < 256; i++) {
            keepNative(4096);
        }
    }

    /** Two generations of loaders live at a time. */
    static void loadClasses(byte[] code) throws Exception {
        if (kept.size() >= 40) {
            kept.subList(0, 20).clear();
        }
        for (int i = 0; i < 20; i++) {
            kept.add(new Loader(code).defined.getDeclaredConstructor().newInstance());
        }
        System.gc();
    }

    static class Loader extends ClassLoader {
        final Class<?> defined;

        Loader(byte[] code) {
            super(Truth.class.getClassLoader());
            defined = defineClass("Truth$Job", code, 0, code.length);
        }
    }

    public static class Job {
        final int[] state = new int[16];

        @Override
        public String toString() {
            return "job " + state.length;
        }
    }

    private static byte[] packed() {
        Deflater deflater = new Deflater();
        deflater.setInput(new byte[100000]);
        deflater.finish();
        byte[] result = new byte[2000];
        deflater.deflate(result);
        deflater.end();
        return result;
    }

    public static void main(String[] arguments) throws Exception {
        byte[] packed = packed();
        byte[] code;
        try (InputStream stream = Truth.class.getResourceAsStream("Truth$Job.class")) {
            code = stream.readAllBytes();
        }
        if (arguments[0].equals("jni")) {
            System.load(arguments[1]);
        }
        Scanner lines = new Scanner(System.in);
        System.out.println("ready");
        while (lines.hasNextLine()) {
            lines.nextLine();
            switch (arguments[0]) {
                case "inflater":
                    openStreams(packed);
                    break;
                case "direct":
                    openBuffers();
                    break;
                case "jni":
                    callNative();
                    break;
                default:
                    loadClasses(code);
            }
            System.out.println("ready");
        }
    }
}
