package rratelimiter.driver;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;

/**
 * Serves requests on stdin and answers on stdout, one a line, until stdin ends.
 *
 * <pre>
 * ID OP ARGUMENT...                 a request; see {@link Operations}
 * ID ok VALUE...                    its answer
 * ID err EXCEPTION MESSAGE          what was thrown: simple class name, message
 * ID unsupported OPERATION          this Redisson release has no such operation
 * ID cancel OTHER                   interrupts the request OTHER; has no answer
 * </pre>
 *
 * Words are separated by one space; those that hold free text (names, addresses, messages) are
 * in the encoding of HTML forms. Every request has a thread of its own, so answers come in any
 * order.
 */
public final class Driver {

    private final PrintStream out;
    private final Operations operations = new Operations();
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final Map<String, FutureTask<Void>> running = new ConcurrentHashMap<>();

    private Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) throws IOException {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, UTF_8);
        System.setOut(System.err);
        try {
            new Driver(out).serve(new BufferedReader(new InputStreamReader(System.in, UTF_8)));
        } finally {
            // Nobody is left to answer: no client need be closed in good order.
            Runtime.getRuntime().halt(0);
        }
    }

    private void serve(BufferedReader in) throws IOException {
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[1].equals("cancel")) {
                FutureTask<Void> task = running.get(words[2]);
                if (task != null) {
                    task.cancel(true);
                }
                continue;
            }
            String id = words[0];
            FutureTask<Void> task = new FutureTask<Void>(() -> run(id, words), null) {
                @Override
                protected void done() {
                    running.remove(id);
                }
            };
            running.put(id, task);
            threads.execute(task);
        }
    }

    private void run(String id, String[] words) {
        String answer;
        try {
            answer = "ok " + operations.run(words);
        } catch (UnsupportedException e) {
            answer = "unsupported " + encode(e.getMessage());
        } catch (Throwable e) {
            answer = "err " + e.getClass().getSimpleName() + " " + encode(String.valueOf(e.getMessage()));
        }
        synchronized (out) {
            out.print(id + " " + answer + "\n");
            out.flush();
        }
    }

    static String encode(String s) {
        return URLEncoder.encode(s, UTF_8);
    }

    static String decode(String s) {
        return URLDecoder.decode(s, UTF_8);
    }
}
