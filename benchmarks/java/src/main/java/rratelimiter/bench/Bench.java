package rratelimiter.bench;

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
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Serves JSON-RPC 1.0 on stdin and stdout, one request after another, a line each, until stdin ends. The only parameter
 * is a list of strings: a name for the request, which is not used here, and the arguments. The error is the simple class
 * name of what was thrown, a colon and the message. ID is the client that is meant.
 *
 * <pre>
 * open ID redisson|bucket4j ADDRESS CONNECTIONS          a client
 * close ID
 * make ID PREFIX N LIMIT MILLISECONDS                    limiters
 * each ID                                                one permit of each of them; how many got one
 * drain ID MOST                                          permits of the first, until it refuses; how many
 * load ID sync|async CALLERS WARM MILLISECONDS EXPONENT  see Load
 * crowd ID CALLERS FROM TO                               see Crowd
 * version                                                of the JVM
 * </pre>
 */
public final class Bench {

    private static final class Client {
        Limiters limiters;
        int count;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, Client> clients = new HashMap<>();

    private Bench() {}

    public static void main(String[] args) throws IOException {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, UTF_8);
        System.setOut(System.err);
        try {
            Bench bench = new Bench();
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.print(bench.answer(JSON.readTree(line)) + "\n");
                out.flush();
            }
        } finally {
            Runtime.getRuntime().halt(0);
        }
    }

    private ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode().putNull("error");
        answer.set("id", request.get("id"));
        try {
            return answer.set("result", JSON.valueToTree(run(request.get("method").asText(), JSON.convertValue(request.get("params").get(0), String[].class))));
        } catch (Throwable e) {
            return answer.put("error", e.getClass().getSimpleName() + ": " + e.getMessage());
        }
    }

    private Object run(String method, String[] words) throws Exception {
        if (method.equals("version")) {
            return Runtime.version().toString();
        }
        Client client = clients.computeIfAbsent(words[1], id -> new Client());
        switch (method) {
            case "open":
                client.limiters = words[2].equals("redisson")
                        ? new RedissonLimiters(words[3], Integer.parseInt(words[4]))
                        : new Bucket4jLimiters(words[3]);
                return "";
            case "close":
                clients.remove(words[1]).limiters.close();
                return "";
            case "make":
                client.count = Integer.parseInt(words[3]);
                client.limiters.make(words[2], client.count, Long.parseLong(words[4]), Long.parseLong(words[5]));
                return "";
            case "each":
                return each(client);
            case "drain":
                return drain(client, Integer.parseInt(words[2]));
            case "load":
                return new Load(client.limiters, Integer.parseInt(words[3]), client.count, Double.parseDouble(words[6]))
                        .run(words[2].equals("async"), Long.parseLong(words[4]), Long.parseLong(words[5]));
            case "crowd":
                return new Crowd(client.limiters)
                        .run(Integer.parseInt(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4]));
            default:
                throw new IllegalArgumentException(method);
        }
    }

    private static int each(Client client) throws Exception {
        AtomicInteger granted = new AtomicInteger();
        Pool.each(client.count, i -> {
            if (client.limiters.take(i)) {
                granted.incrementAndGet();
            }
        });
        return granted.get();
    }

    private static int drain(Client client, int most) throws Exception {
        int n = 0;
        while (n < most && client.limiters.take(0)) {
            n++;
        }
        return n;
    }
}
