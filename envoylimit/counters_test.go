package envoylimit

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// An entry's key that holds '_' shares no counter with another key.
func TestService_KeysWithUnderscores(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: user_id, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: user%5Fid, rate_limit: {unit: hour, requests_per_unit: 7}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, rdb redistest.Client) {
		run(t, s,
			step{"user=id_5 | 3", "OK: OK 2/5"},
			step{"user_id=5", "OK: OK 8/9"},
			step{"user%5Fid=5 | 2", "OK: OK 5/7"},
			step{"user=id_5 | 0\nuser_id=5 | 0", "OK: OK 2/5 OK 8/9"},
		)
		assert.ElementsMatch(t, []string{
			"envoy:{web}:user_id_5:hour", "envoy:{web}:user%5Fid_5:hour", "envoy:{web}:user%255Fid_5:hour",
		}, names(t, rdb))
	})
}
