package rratelimiter.bench;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Serves one request after another, a line each, until stdin ends. The answer is "ok VALUE..." or "err MESSAGE". ID is
 * the client that is meant.
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

    private final Map<String, Client> clients = new HashMap<>();

    private Bench() {}

    public static void main(String[] args) throws IOException {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, UTF_8);
        System.setOut(System.err);
        try {
            Bench bench = new Bench();
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                out.print(bench.answer(line.split(" ")) + "\n");
                out.flush();
            }
        } finally {
            Runtime.getRuntime().halt(0);
        }
    }

    private String answer(String[] words) {
        try {
            return "ok " + run(words);
        } catch (Throwable e) {
            return "err " + encode(String.valueOf(e));
        }
    }

    private String run(String[] words) throws Exception {
        if (words[0].equals("version")) {
            return encode(Runtime.version().toString());
        }
        Client client = clients.computeIfAbsent(words[1], id -> new Client());
        switch (words[0]) {
            case "open":
                String address = decode(words[3]);
                client.limiters = words[2].equals("redisson")
                        ? new RedissonLimiters(address, Integer.parseInt(words[4]))
                        : new Bucket4jLimiters(address);
                return "";
            case "close":
                clients.remove(words[1]).limiters.close();
                return "";
            case "make":
                client.count = Integer.parseInt(words[3]);
                client.limiters.make(decode(words[2]), client.count, Long.parseLong(words[4]), Long.parseLong(words[5]));
                return "";
            case "each":
                return String.valueOf(each(client));
            case "drain":
                return String.valueOf(drain(client, Integer.parseInt(words[2])));
            case "load":
                return new Load(client.limiters, Integer.parseInt(words[3]), client.count, Double.parseDouble(words[6]))
                        .run(words[2].equals("async"), Long.parseLong(words[4]), Long.parseLong(words[5]));
            case "crowd":
                return new Crowd(client.limiters)
                        .run(Integer.parseInt(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4]));
            default:
                throw new IllegalArgumentException(words[0]);
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

    static String encode(String s) {
        return URLEncoder.encode(s, UTF_8);
    }

    static String decode(String s) {
        return URLDecoder.decode(s, UTF_8);
    }
}
