package rratelimiter.driver;

import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RedissonClient;

/**
 * Redisson's rate limiter with a change to its scripts that no release has yet. The property {@code
 * rratelimiter.release} names the change; with any other name the limiter is Redisson's own. The class of Redisson stays
 * as it is: what sends its commands changes the one script on the way, so that a script which no longer is what the
 * change was written for is an error.
 *
 * <ul>
 *   <li>{@code next}: what pull request 7343 of Redisson describes. tryAcquire counts the free permits anew from those
 *       in use only if both together do not exceed the rate yet.
 *   <li>{@code after-next}: release takes the permits off the oldest entries of the set, too.
 * </ul>
 */
final class Unreleased {

    private static final String NAME = System.getProperty("rratelimiter.release", "");

    private static final String COUNTS = "currentValue = tonumber(rate) - used; ";
    private static final String COUNTS_UNLESS_RELEASED =
            "if tonumber(currentValue) + used <= tonumber(rate) then " + COUNTS + "end; ";

    private static final String RAISES = "local newValue = currentValue + tonumber(ARGV[1]);";
    private static final String TAKES_OFF =
            "local left = tonumber(ARGV[1]); "
                    + "for _, entry in ipairs(redis.call('zrange', permitsName, 0, -1)) do "
                    + "  if left <= 0 then break end; "
                    + "  local id, held = struct.unpack('Bc0I', entry); "
                    + "  local at = redis.call('zscore', permitsName, entry); "
                    + "  redis.call('zrem', permitsName, entry); "
                    + "  if held > left then "
                    + "    redis.call('zadd', permitsName, at, struct.pack('Bc0I', string.len(id), id, held - left)); "
                    + "  end; "
                    + "  left = left - held; "
                    + "end; ";

    private Unreleased() {}

    static RRateLimiter limiter(RedissonClient client, String name) throws Throwable {
        if (!NAME.equals("next") && !NAME.equals("after-next")) {
            return client.getRateLimiter(name);
        }
        Class<?> executor = Class.forName("org.redisson.command.CommandAsyncExecutor");
        Object real = client.getClass().getMethod("getCommandExecutor").invoke(client);
        InvocationHandler change = (self, method, args) -> {
            if (method.getName().startsWith("evalWrite")) {
                for (int i = 0; i < args.length; i++) {
                    if (args[i] instanceof String && ((String) args[i]).contains("redis.call")) {
                        args[i] = changed((String) args[i]);
                    }
                }
            }
            try {
                return method.invoke(real, args);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        };
        Object changing = Proxy.newProxyInstance(executor.getClassLoader(), new Class<?>[] {executor}, change);
        Constructor<?> constructor =
                Class.forName("org.redisson.RedissonRateLimiter").getDeclaredConstructor(executor, String.class);
        constructor.setAccessible(true);
        return (RRateLimiter) constructor.newInstance(changing, name);
    }

    private static String changed(String script) {
        boolean acquires = script.contains("'zadd'");
        boolean releases = script.contains("local newValue = currentValue +");
        if (NAME.equals("next") && acquires) {
            return replaced(script, COUNTS, COUNTS_UNLESS_RELEASED);
        }
        if (NAME.equals("after-next") && releases) {
            return replaced(script, RAISES, TAKES_OFF + RAISES);
        }
        return script;
    }

    private static String replaced(String script, String old, String text) {
        int at = script.indexOf(old);
        if (at < 0 || script.indexOf(old, at + 1) >= 0) {
            throw new IllegalStateException("this is not the script to change: " + script);
        }
        return script.replace(old, text);
    }
}
