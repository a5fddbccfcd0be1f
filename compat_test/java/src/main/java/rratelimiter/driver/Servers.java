package rratelimiter.driver;

import java.util.HashMap;
import java.util.Map;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;

/**
 * How a client reaches servers behind proxies: SERVERS is {@code single}, {@code cluster} or {@code
 * sentinel}, MASTER the name that Sentinels have for it, ADDRESSES are those of the servers or
 * Sentinels, and INSTEAD is pairs of the address that a server says it has and the one to go to;
 * all have commas between. Of three attempts each has TIMEOUT for its answer. LABEL is the name of
 * its connections. With PAUSE, which is the time between attempts, it reads of masters only.
 */
final class Servers {

    private static final int ATTEMPTS = 3;
    private static final int RETRY_INTERVAL = 50;

    private Servers() {}

    static Config config(Arguments args) {
        Config config = new Config();
        config.setThreads(4);
        config.setNettyThreads(4);
        String[] addresses = args.word(3).split(",");
        for (int i = 0; i < addresses.length; i++) {
            addresses[i] = "redis://" + addresses[i];
        }
        Map<String, String> instead = new HashMap<>();
        String[] pairs = args.word(4).split(",");
        for (int i = 0; i + 1 < pairs.length; i += 2) {
            instead.put(pairs[i], pairs[i + 1]);
        }
        int timeout = (int) args.number(5);
        switch (args.word(1)) {
            case "cluster":
                set(config.useClusterServers().addNodeAddress(addresses).setScanInterval(500).setNatMap(instead), timeout, args);
                break;
            case "sentinel":
                set(
                        config.useSentinelServers()
                                .setMasterName(args.word(2))
                                .addSentinelAddress(addresses)
                                .setNatMap(instead),
                        timeout, args);
                break;
            default:
                String address = addresses[0].substring("redis://".length());
                config.useSingleServer()
                        .setAddress("redis://" + instead.getOrDefault(address, address))
                        .setConnectionMinimumIdleSize(1)
                        .setTimeout(timeout)
                        .setConnectTimeout(timeout)
                        .setRetryAttempts(ATTEMPTS - 1)
                        .setRetryInterval(pause(args))
                        .setClientName(args.word(6));
        }
        return config;
    }

    private static int pause(Arguments args) {
        return args.has(7) ? (int) args.number(7) : RETRY_INTERVAL;
    }

    private static void set(BaseMasterSlaveServersConfig<?> servers, int timeout, Arguments args) {
        servers.setMasterConnectionMinimumIdleSize(1);
        servers.setSlaveConnectionMinimumIdleSize(1);
        // The same as above: what the two share has no public name in older releases.
        servers.setTimeout(timeout);
        servers.setConnectTimeout(timeout);
        servers.setRetryAttempts(ATTEMPTS - 1);
        servers.setRetryInterval(pause(args));
        servers.setClientName(args.word(6));
        if (args.has(7)) {
            servers.setReadMode(ReadMode.MASTER);
        }
    }
}
