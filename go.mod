module github.com/rratelimiter/rratelimiter

go 1.26.0

// What programs that import the limiter link.
require (
	github.com/google/uuid v1.6.0 // draws a Client's id
	github.com/redis/go-redis/v9 v9.23.0 // talks to Redis
)

// What only tests link; rratelimitertest brings the first into applications' tests.
require (
	github.com/alicebob/miniredis/v2 v2.40.0 // the server in memory
	github.com/anishathalye/porcupine v1.3.1 // checks linearizability
	github.com/dunglas/httpsfv v1.1.2 // reads the headers that httplimit writes
	github.com/stretchr/testify v1.12.1 // assertions
	github.com/yuin/gopher-lua v1.1.2 // runs steps of scripts alone; miniredis needs it too
	pgregory.net/rapid v1.3.0 // draws random tests, and shrinks those that fail
)

// What go-redis, miniredis and testify need.
require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
