package rratelimiter.bench;

import java.util.concurrent.CompletionStage;

/** The limiters of one library. */
interface Limiters extends AutoCloseable {

    /** Makes n limiters, called prefix0, prefix1 and so on, in place of those made before. */
    void make(String prefix, int n, long limit, long intervalMillis) throws Exception;

    /** Asks limiter i for one permit. */
    boolean take(int i) throws Exception;

    /** Does so without a thread that waits. */
    CompletionStage<Boolean> takeAsync(int i);
}
