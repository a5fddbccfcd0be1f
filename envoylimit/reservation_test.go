package envoylimit

import (
	"context"
	"encoding/base64"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// The first call reserves, the one at the stream's end settles, by any Service, once.
func TestReservation_IsSettledByAnyService(t *testing.T) {
	t.Parallel()
	type row struct {
		cost  string        // of the second call
		after time.Duration // the first
		left  string        // of user, and of team
	}
	limitertest.Each(t, map[string]row{
		"Less":             {"37", time.Second, "OK: OK 163/200 OK 963/1000"},
		"More":             {"150", time.Second, "OK: OK 50/200 OK 850/1000"},
		"Everything":       {"300", time.Second, "OVER: OVER 0/200 OK 700/1000"},
		"Nothing":          {"0", time.Second, "OK: OK 200/200 OK 1000/1000"},
		"NoCost":           {"", time.Second, "OK: OK 100/200 OK 900/1000"},
		"NoCostAfterHold":  {"", 61 * time.Second, "OK: OK 200/200 OK 900/1000"},
		"AfterTheHold":     {"37", 61 * time.Second, "OK: OK 163/200 OK 963/1000"},
		"AfterTheInterval": {"37", 61 * time.Minute, "OK: OK 163/200 OK 963/1000"},
	}, func(t *testing.T, tc row) {
		onStage(t, llm, func(_ *testing.T, s *stage) {
			s.play("user_calls=ann; user=ann; team=red -> OK: OK 29/30 OK 100/200 OK 900/1000 as $a")
			time.Sleep(tc.after)
			for range 2 {
				s.Service = newService(s, s.rdb, llm)
				s.play("user=ann, rrl_reservation=$a | " + tc.cost + "; team=red, rrl_reservation=$a | " + tc.cost + " -> OK: OK " + "OK")
				s.play("user=ann | 0; team=red | 0 -> " + tc.left)
			}
		})
	})
}

// What a stream has cost is charged though Envoy's deadline is over before Redis answers.
func TestReservation_IsSettledToTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, limitertest.FarAway(t, 50*time.Millisecond), llm)
		id := s.reserves(t, "user=ann", "OK: OK 100/200")
		for _, text := range []string{"user=ann, rrl_reservation=" + id + " | 150", "user=bob, rrl_reservation=none | 150"} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err := s.ShouldRateLimit(ctx, request("web", text))
			cancel()
			require.NoError(t, err)
		}
		assert.Equal(t, "OK: OK 50/200 OK 50/200", says(s.ask(t, "user=ann | 0; user=bob | 0"), nil))
	})
}

// FuzzNamed checks that no id from outside makes a panic.
func FuzzNamed(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 1, 200, 1})
	f.Fuzz(func(t *testing.T, id []byte) {
		key := "{web}:k_v:hour"
		for _, text := range []string{string(id), base64.RawURLEncoding.EncodeToString(id)} {
			part := named(text, key)
			assert.LessOrEqual(t, len(part), len(id))
		}
	})
}
