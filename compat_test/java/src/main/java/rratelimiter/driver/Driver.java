package rratelimiter.driver;

import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;

/**
 * Serves JSON-RPC 1.0 on stdin and stdout, a line each, until stdin ends. The only parameter of a request is a list of
 * strings: a name for the request, by which a later {@code cancel} interrupts it, and the arguments; see {@link
 * Operations}. The error is the simple class name of what was thrown, a colon and the message.
 *
 * <p>Every request has a thread of its own, so answers come in any order.
 */
public final class Driver {

    private static final ObjectMapper JSON = new ObjectMapper();

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
            JsonNode request = JSON.readTree(line);
            Arguments arguments = new Arguments(request);
            FutureTask<Void> task = new FutureTask<Void>(() -> answer(request, arguments), null) {
                @Override
                protected void done() {
                    running.remove(arguments.name);
                }
            };
            running.put(arguments.name, task);
            threads.execute(task);
        }
    }

    private void answer(JsonNode request, Arguments arguments) {
        ObjectNode answer = JSON.createObjectNode().putNull("error");
        answer.set("id", request.get("id"));
        try {
            answer.set("result", JSON.valueToTree(run(arguments)));
        } catch (Throwable e) {
            answer.put("error", e.getClass().getSimpleName() + ": " + e.getMessage());
        }
        synchronized (out) {
            out.print(answer + "\n");
            out.flush();
        }
    }

    private Object run(Arguments arguments) throws Throwable {
        if (!arguments.operation.equals("cancel")) {
            return operations.run(arguments);
        }
        FutureTask<Void> task = running.get(arguments.word(0));
        if (task != null) {
            task.cancel(true);
        }
        return "done";
    }
}
