// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

import java.io.InputStream;
import java.util.concurrent.Callable;
import java.util.zip.Deflater;

/** Loads classes in loaders that are dropped, collects garbage, and allocates native memory from their code. */
public class ClassChurn {
    /** Loaded again and again. */
    public static class Job implements Callable<Integer> {
        @Override
        public Integer call() {
            byte[] out = new byte[4096];
            int total = 0;
            for (int i = 0; i < 20; i++) {
                Deflater deflater = new Deflater();
                deflater.setInput(new byte[10000 + i]);
                deflater.finish();
                total += deflater.deflate(out);
                deflater.end();
            }
            return total;
        }
    }

    static class Loader extends ClassLoader {
        private final byte[] code;

        Loader(byte[] code) {
            super(ClassChurn.class.getClassLoader());
            this.code = code;
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            return name.equals("ClassChurn$Job") ? defineClass(name, code, 0, code.length) : super.loadClass(name, resolve);
        }
    }

    public static void main(String[] arguments) throws Exception {
        byte[] code;
        try (InputStream stream = ClassChurn.class.getResourceAsStream("ClassChurn$Job.class")) {
            code = stream.readAllBytes();
        }
        for (int thread = 0; thread < 4; thread++) {
            new Thread(() -> {
                try {
                    while (true) {
                        Object job = new Loader(code).loadClass("ClassChurn$Job").getDeclaredConstructor().newInstance();
                        for (int i = 0; i < 30; i++) {
                            ((Callable<?>) job).call();
                        }
                    }
                } catch (Exception failure) {
                    failure.printStackTrace();
                    System.exit(1);
                }
            }).start();
        }
        while (true) {
            System.gc();
            Thread.sleep(20);
        }
    }
}
