package rratelimiter.driver;

import java.net.URI;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RExpirable;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateIntervalUnit;
import org.redisson.api.RateLimiterConfig;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.Codec;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * What can be asked for. CLIENT is a name chosen by who opens it, TYPE a {@link RateType}, and
 * times are milliseconds. An operation without a result answers {@code done}.
 *
 * <pre>
 * version                                                         its release
 * open CLIENT URL [PREFIX [CODEC SCRIPTCACHE]]                    its client id; CODEC is a class
 * openOn CLIENT SERVERS MASTER ADDRESSES INSTEAD TIMEOUT LABEL [PAUSE] its client id; see {@link Servers}
 * close CLIENT
 * trySetRate CLIENT NAME TYPE RATE INTERVAL KEEPALIVE             true or false
 * setRate CLIENT NAME TYPE RATE INTERVAL KEEPALIVE
 * setRateArgs CLIENT NAME TYPE RATE INTERVAL KEEPALIVE KEEPSTATE
 * updateRate CLIENT NAME TYPE RATE INTERVAL KEEPALIVE KEEPSTATE   true or false
 * tryAcquire CLIENT NAME PERMITS [TIMEOUT]                        true or false
 * acquire CLIENT NAME PERMITS
 * release CLIENT NAME PERMITS
 * availablePermits CLIENT NAME                                    a number
 * getConfig CLIENT NAME                                           Type (0: OVERALL), Rate, Interval in ns
 * expire CLIENT NAME TIME                                         true or false
 * expireAt CLIENT NAME EPOCHTIME                                  true or false
 * clearExpire CLIENT NAME                                         true or false
 * ttl CLIENT NAME                                                 time left, -1 or -2
 * isExists CLIENT NAME                                            true or false
 * delete CLIENT NAME                                              true or false
 * unlink CLIENT NAME                                              true or false
 * rename CLIENT NAME NEWNAME
 * </pre>
 *
 * A KEEPALIVE of 0 stands for the form of the call that has none. A client with a PREFIX has a
 * name mapper that puts it before every name. What a release lacks throws NoSuchMethodException.
 */
final class Operations {

    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();

    Object run(Arguments args) throws Throwable {
        switch (args.operation) {
            case "version":
                return Redisson.class.getPackage().getImplementationVersion();
            case "open":
                return open(args);
            case "openOn":
                return keep(args, Servers.config(args));
            case "close":
                known(args, clients.remove(args.word(0))).shutdown(0, 200, TimeUnit.MILLISECONDS);
                return "done";
        }
        RRateLimiter limiter = Unreleased.limiter(known(args, clients.get(args.word(0))), args.word(1));
        switch (args.operation) {
            case "trySetRate":
                return setRate(limiter, args);
            case "setRate":
                setRate(limiter, args);
                return "done";
            case "setRateArgs":
                Newer.call(limiter, "setRate", rateArgs(args));
                return "done";
            case "updateRate":
                return Newer.call(limiter, "updateRate", rateArgs(args));
            case "tryAcquire":
                return args.has(3)
                        ? limiter.tryAcquire(args.number(2), args.number(3), TimeUnit.MILLISECONDS)
                        : limiter.tryAcquire(args.number(2));
            case "acquire":
                limiter.acquire(args.number(2));
                return "done";
            case "release":
                Newer.call(limiter, "release", args.number(2));
                return "done";
            case "availablePermits":
                return limiter.availablePermits();
            case "getConfig":
                RateLimiterConfig config = limiter.getConfig();
                return Map.of(
                        "Type", config.getRateType().ordinal(),
                        "Rate", config.getRate(),
                        "Interval", TimeUnit.MILLISECONDS.toNanos(config.getRateInterval()));
            case "expire":
                return expirable(limiter, args).expire(args.number(2), TimeUnit.MILLISECONDS);
            case "expireAt":
                return expirable(limiter, args).expireAt(args.number(2));
            case "clearExpire":
                return expirable(limiter, args).clearExpire();
            case "ttl":
                return expirable(limiter, args).remainTimeToLive();
            case "isExists":
                return limiter.isExists();
            case "delete":
                return limiter.delete();
            case "unlink":
                return limiter.unlink();
            case "rename":
                limiter.rename(args.word(2));
                return "done";
            default:
                throw new IllegalArgumentException("no operation " + args.operation);
        }
    }

    private String open(Arguments args) throws Throwable {
        Config config = new Config();
        config.setThreads(2);
        config.setNettyThreads(2);
        SingleServerConfig server = single(config, args.word(1));
        if (args.has(2) && !args.word(2).isEmpty()) {
            Newer.mapNames(config, server, args.word(2));
        }
        if (args.has(3)) {
            config.setCodec((Codec) Class.forName(args.word(3)).getDeclaredConstructor().newInstance());
            config.setUseScriptCache(Boolean.parseBoolean(args.word(4)));
        }
        return keep(args, config);
    }

    private static SingleServerConfig single(Config config, String url) {
        URI uri = URI.create(url);
        SingleServerConfig server = config.useSingleServer()
                .setAddress(uri.getScheme() + "://" + uri.getAuthority())
                .setConnectionMinimumIdleSize(1)
                // However busy the machine is, no request is sent again.
                .setConnectTimeout(60_000)
                .setTimeout(60_000);
        if (uri.getPath().length() > 1) {
            server.setDatabase(Integer.parseInt(uri.getPath().substring(1)));
        }
        return server;
    }

    private String keep(Arguments args, Config config) {
        RedissonClient client = Redisson.create(config);
        clients.put(args.word(0), client);
        return client.getId();
    }

    private static RedissonClient known(Arguments args, RedissonClient client) {
        if (client == null) {
            throw new IllegalArgumentException("no client " + args.word(0));
        }
        return client;
    }

    private static Object setRate(RRateLimiter limiter, Arguments args) throws Throwable {
        if (args.number(5) == 0) {
            return Newer.call(limiter, args.operation, args.type(2), args.number(3), args.number(4), RateIntervalUnit.MILLISECONDS);
        }
        return Newer.call(limiter, args.operation, args.type(2), args.number(3), args.duration(4), args.duration(5));
    }

    private static Object rateArgs(Arguments args) throws Throwable {
        Object result = Newer.rateArgs(args.type(2), args.number(3), args.duration(4));
        if (args.number(5) != 0) {
            Newer.call(result, "keepAliveTime", args.duration(5));
        }
        return Newer.call(result, "keepState", Boolean.parseBoolean(args.word(6)));
    }

    private static RExpirable expirable(RRateLimiter limiter, Arguments args) throws NoSuchMethodException {
        if (limiter instanceof RExpirable) {
            return (RExpirable) limiter;
        }
        throw new NoSuchMethodException(args.operation);
    }
}
