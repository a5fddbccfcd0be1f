// Package envoylimit is a rate limit service for Envoy and for all that speak its protocol, envoy.service.ratelimit.v3. Its
// configuration is that of envoyproxy/ratelimit, with keys of its own: docs/envoy.md has both. Limits are counted by the
// limiters of this module, in Redis.
//
//	config, err := envoylimit.Load("limits")
//	...
//	service := envoylimit.New(client, config)
//	ratelimitv3.RegisterRateLimitServiceServer(server, service)
//
// All descriptors of a request are charged, or none. Command rratelimitd, below, is a whole server.
package envoylimit
