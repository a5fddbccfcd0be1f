package peer

// Modules are those whose releases belong to the figures.
var Modules = []string{
	"github.com/redis/go-redis/v9",
	"github.com/go-redis/redis_rate/v10",
	"github.com/ulule/limiter/v3",
	"github.com/throttled/throttled/v2",
	"github.com/go-chi/httprate",
	"github.com/go-chi/httprate-redis",
}
