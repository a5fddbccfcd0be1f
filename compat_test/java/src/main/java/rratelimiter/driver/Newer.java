package rratelimiter.driver;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Duration;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/** Calls what older Redisson releases lack, and which this source can't name therefore. */
final class Newer {

    private static final String RATE_ARGS = "org.redisson.api.ratelimiter.RateLimiterArgs";

    private Newer() {}

    /** Calls the API method of target that has this name and takes these arguments. */
    static Object call(Object target, String name, Object... args) throws Throwable {
        Class<?> api = target instanceof RRateLimiter ? RRateLimiter.class : rateArgsClass();
        return invoke(method(api, name, args), target, args);
    }

    static Object rateArgs(RateType type, long rate, Duration interval) throws Throwable {
        Object[] args = {type, rate, interval};
        return invoke(method(rateArgsClass(), "of", args), null, args);
    }

    /** Has the client put prefix before the name of everything that it keeps in Redis. */
    static void mapNames(Config config, SingleServerConfig server, String prefix) throws Throwable {
        // Both the setter and NameMapper have moved over the releases.
        for (Object target : new Object[] {config, server}) {
            for (Method method : target.getClass().getMethods()) {
                if (method.getName().equals("setNameMapper")) {
                    Class<?>[] types = method.getParameterTypes();
                    Object mapper = Proxy.newProxyInstance(types[0].getClassLoader(), types, (self, called, args) -> {
                        String name = (String) args[0];
                        return called.getName().equals("map") ? prefix + name : name.substring(prefix.length());
                    });
                    invoke(method, target, new Object[] {mapper});
                    return;
                }
            }
        }
        throw new NoSuchMethodException("setNameMapper");
    }

    private static Class<?> rateArgsClass() throws NoSuchMethodException {
        try {
            return Class.forName(RATE_ARGS);
        } catch (ClassNotFoundException e) {
            throw new NoSuchMethodException("RateLimiterArgs");
        }
    }

    private static Object invoke(Method method, Object target, Object[] args) throws Throwable {
        try {
            return method.invoke(target, args);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    private static Method method(Class<?> api, String name, Object[] args) throws NoSuchMethodException {
        for (Method method : api.getMethods()) {
            if (method.getName().equals(name) && takes(method.getParameterTypes(), args)) {
                return method;
            }
        }
        throw new NoSuchMethodException(name);
    }

    private static boolean takes(Class<?>[] types, Object[] args) {
        if (types.length != args.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            Object arg = args[i];
            boolean fits = types[i] == long.class && arg instanceof Long
                    || types[i] == boolean.class && arg instanceof Boolean
                    || types[i].isInstance(arg);
            if (!fits) {
                return false;
            }
        }
        return true;
    }
}
