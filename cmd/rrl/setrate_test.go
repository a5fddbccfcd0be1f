package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A changed rate is no reason to grant what is in use a second time.
func TestANewRateKeepsPermitsInUse(t *testing.T) {
	t.Parallel()
	const kept, none, all = "granted 1 permit, 4 left\n", "denied 1 permit, 0 left, try again in ", "granted 1 permit, 94 left\n"
	for name, c := range map[string]struct {
		args []string
		next string // what the next acquire says
	}{
		"set-rate":              {[]string{"set-rate", "orders", "95/1h"}, kept},
		"update-rate":           {[]string{"update-rate", "orders", "95/1h"}, kept},
		"less than is in use":   {[]string{"set-rate", "orders", "50/1h"}, none},
		"keep-state":            {[]string{"set-rate", "orders", "95/1h", "--keep-state"}, kept},
		"reset":                 {[]string{"set-rate", "orders", "95/1h", "--reset"}, all},
		"update-rate and reset": {[]string{"update-rate", "orders", "95/1h", "--reset"}, all},
		"keep-state=false":      {[]string{"update-rate", "orders", "95/1h", "--keep-state=false"}, all},
		"another type":          {[]string{"set-rate", "orders", "95/1h", "--type", "per-client"}, all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			require.Zero(t, s.rrl("set-rate", "orders", "100/1h").code)
			require.Zero(t, s.rrl("acquire", "orders", "-n", "90").code)
			got := s.rrl(c.args...)
			require.Zero(t, got.code, "%+v", got)
			assert.Contains(t, s.rrl("acquire", "orders").stdout, c.next)
		})
	}
}

// Nor does it make clients share what each had of its own.
func TestANewRateKeepsTheType(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "own", "10/1h", "--type", "per-client").code)
	for _, client := range []string{"ann", "bob"} {
		require.Zero(t, s.rrl("acquire", "own", "-n", "4", "--client-id", client).code)
	}
	for _, command := range []string{"set-rate", "update-rate"} {
		assert.Equal(t, outcome{exitYes, "own has 5 permits every 1h for each client\n", ""}, s.rrl(command, "own", "5/1h"))
	}
	for _, st := range shownBy(t, s.url(), "own").States {
		assert.EqualValues(t, 4, st.InUse, *st.ClientID)
	}
	assert.Equal(t, "own has 5 permits every 1h\n", s.rrl("set-rate", "own", "5/1h", "--type", "overall").stdout)
	s.fails("want overall or per-client", "set-rate", "own", "5/1h", "--type", "")
}

func TestHelpOffersReset(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"set-rate", "update-rate"} {
		help := rrl(t, command, "--help").stdout
		assert.Contains(t, help, "--reset")
		assert.NotContains(t, help, "--keep-state")
	}
	assert.NotContains(t, rrl(t, "try-set-rate", "--help").stdout, "--reset")
}

// What is broken is mended by starting anew, as the error says.
func TestResetMendsALimiter(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.HSet("orders", "rate", "ten", "interval", "1000", "type", "0")
	s.fails("rrl set-rate --reset or rrl delete cures it", "set-rate", "orders", "5/1h")
	require.Zero(t, s.rrl("set-rate", "orders", "5/1h", "--reset").code)
	assert.Equal(t, "granted 1 permit, 4 left\n", s.rrl("acquire", "orders").stdout)
	s.fails("--reset and --keep-state exclude each other", "set-rate", "orders", "5/1h", "--reset", "--keep-state")
	s.fails("give --reset", "set-rate", "orders", "5/1h", "--redisson", "3.12.0")
	require.Zero(t, s.rrl("set-rate", "orders", "5/1h", "--redisson", "3.12.0", "--reset").code)
}

func TestKeepAliveInDays(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	got := s.rrl("set-rate", "orders", "5/1d", "--keep-alive", "7d")
	assert.Equal(t, outcome{exitYes, "orders has 5 permits every 24h, deleted when unused for 168h\n", ""}, got)
	s.fails(`--keep-alive "long": want a time, such as 500ms, 10s or 1h`, "set-rate", "orders", "5/1d", "--keep-alive", "long")
}
