package rratelimiter.bench;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** One call, then, some time later, callers that ask without a pause. */
final class Crowd {

    private final Limiters limiters;
    private final List<Map<String, Long>> grants = new ArrayList<>();

    Crowd(Limiters limiters) {
        this.limiters = limiters;
    }

    /** When each grant was Sent and Answered, in nanoseconds since the beginning. */
    List<Map<String, Long>> run(int callers, long fromMillis, long toMillis) throws Exception {
        long begin = System.nanoTime();
        ask(begin);
        Thread.sleep(Math.max(0, fromMillis - (System.nanoTime() - begin) / 1_000_000));
        Pool.join(Pool.start(callers, i -> {
            do {
                try {
                    ask(begin);
                } catch (Exception e) {
                    // No decision: neither a grant nor a refusal.
                }
            } while (System.nanoTime() - begin < toMillis * 1_000_000);
        }));
        return grants;
    }

    private void ask(long begin) throws Exception {
        long sent = System.nanoTime() - begin;
        if (limiters.take(0)) {
            long answered = System.nanoTime() - begin;
            synchronized (grants) {
                grants.add(Map.of("Sent", sent, "Answered", answered));
            }
        }
    }
}
