package rratelimiter.bench;

import io.github.bucket4j.BucketConfiguration;
import io.github.bucket4j.distributed.AsyncBucketProxy;
import io.github.bucket4j.distributed.BucketProxy;
import io.github.bucket4j.distributed.ExpirationAfterWriteStrategy;
import io.github.bucket4j.distributed.proxy.ProxyManager;
import io.github.bucket4j.distributed.proxy.optimization.Optimizations;
import io.github.bucket4j.redis.lettuce.Bucket4jLettuce;
import io.lettuce.core.RedisClient;
import java.time.Duration;
import java.util.concurrent.CompletionStage;

/** bucket4j's buckets in Redis, through Lettuce, with the requests of one JVM combined. */
final class Bucket4jLimiters implements Limiters {

    private final RedisClient client;
    private final ProxyManager<byte[]> manager;
    private BucketProxy[] buckets = {};
    private AsyncBucketProxy[] asyncBuckets = {};

    Bucket4jLimiters(String address) {
        client = RedisClient.create("redis://" + address);
        manager = Bucket4jLettuce.casBasedBuilder(client)
                .expirationAfterWrite(
                        ExpirationAfterWriteStrategy.basedOnTimeForRefillingBucketUpToMax(Duration.ofSeconds(10)))
                .build();
    }

    @Override
    public void make(String prefix, int n, long limit, long intervalMillis) {
        BucketConfiguration configuration = BucketConfiguration.builder()
                .addLimit(l -> l.capacity(limit).refillGreedy(limit, Duration.ofMillis(intervalMillis)))
                .build();
        BucketProxy[] made = new BucketProxy[n];
        for (int i = 0; i < n; i++) {
            made[i] = manager.builder()
                    .withOptimization(Optimizations.batching())
                    .build((prefix + i).getBytes(), () -> configuration);
        }
        buckets = made;
        AsyncBucketProxy[] async = new AsyncBucketProxy[n];
        for (int i = 0; i < n; i++) {
            async[i] = manager.asAsync()
                    .builder()
                    .withOptimization(Optimizations.batching())
                    .build((prefix + i).getBytes(), configuration);
        }
        asyncBuckets = async;
    }

    @Override
    public boolean take(int i) {
        return buckets[i].tryConsume(1);
    }

    @Override
    public CompletionStage<Boolean> takeAsync(int i) {
        return asyncBuckets[i].tryConsume(1);
    }

    @Override
    public void close() {
        client.shutdown();
    }
}
