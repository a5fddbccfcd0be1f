package rratelimiter.bench;

import java.time.Duration;
import java.util.concurrent.CompletionStage;
import org.redisson.Redisson;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's RRateLimiter. */
final class RedissonLimiters implements Limiters {

    private final RedissonClient client;
    private RRateLimiter[] limiters = {};

    RedissonLimiters(String address, int connections) {
        Config config = new Config();
        config.useSingleServer()
                .setAddress("redis://" + address)
                .setConnectionPoolSize(connections)
                // All kept open, as long as the callers' are.
                .setConnectionMinimumIdleSize(connections)
                // A script that stops the server for seconds is measured, not repeated.
                .setTimeout(60_000);
        client = Redisson.create(config);
    }

    @Override
    public void make(String prefix, int n, long limit, long intervalMillis) throws Exception {
        RRateLimiter[] made = new RRateLimiter[n];
        Pool.each(n, i -> {
            made[i] = client.getRateLimiter(prefix + i);
            made[i].trySetRate(RateType.OVERALL, limit, Duration.ofMillis(intervalMillis));
        });
        limiters = made;
    }

    @Override
    public boolean take(int i) {
        return limiters[i].tryAcquire();
    }

    @Override
    public CompletionStage<Boolean> takeAsync(int i) {
        return limiters[i].tryAcquireAsync();
    }

    @Override
    public void close() {
        client.shutdown();
    }
}
