package look

// Problem says how bad a kind of anomaly is, why, and what to do.
type Problem struct {
	Level  string `json:"level"`
	Reason string `json:"reason"`
	Advice string `json:"advice"`
}

// The levels of problems.
const (
	Note    = "note" // good to know
	Warning = "warning"
	Error   = "error"
)

// ProblemOf returns the Problem of a kind of anomaly.
func ProblemOf(kind string) Problem {
	p := problems[kind]
	if p.Level == "" {
		p.Level, p.Reason = Warning, "a healthy limiter's keys don't look like this"
	}
	if p.Advice == "" {
		p.Advice = "rrl show NAME says more of each"
	}
	return p
}

// problems has the kinds that need more than the default warning.
var problems = map[string]Problem{
	"wrong_type": {Error, "calls of this limiter fail with WRONGTYPE", "find out who writes that key: it or the limiter needs another name"},
	"bad_config": {Error, "calls of this limiter fail", "rrl set-rate --reset rewrites it"},
	"not_ours":   {Note, "no RateLimiter can have this name", "to make one, choose another name"},
	"bad_value":  {Error, "calls of this limiter fail, Redisson's too", "rrl set-rate --reset starts it full"},
	"no_config":  {Error, "calls fail because it has no rate; the keys that are left are useless", "rrl set-rate, or rrl delete"},
	"unknown_layout": {
		Error, "Redisson fails on such a member, or misreads it", "find out which program writes it; rrl set-rate --reset starts it full",
	},
	"mixed_layouts": {
		Error, "Redissons that can't read each other's members fail, or grant too many permits",
		"upgrade those before 3.17 and run rrl migrate, or start it full by rrl set-rate --reset",
	},
	"window_and_members": {
		Error, "too many permits are granted", "upgrade the Redisson before 3.13.3, then run rrl migrate",
	},
	"in_debt": {
		Error, "Redisson refuses every request, even when all permits are back",
		"the next calls through rratelimiter repair what they can; rrl set-rate --reset starts it full",
	},
	"no_ttl": {
		Error, "the key stays when the limiter's rate has expired, and is counted when a rate is set again",
		"rrl expire sets the time of all its keys; or rrl delete",
	},
	"value_above_rate": {Warning, "more permits are free than the rate", "rrl set-rate --reset starts it full"},
	"sum_not_rate": {
		Warning, "permits were lost, or are granted beyond the rate; Redisson's own release and changes of a rate do that too",
		"the next calls repair what they can; rrl set-rate --reset starts it full",
	},
	"no_value":           {Warning, "Redisson grants the whole rate again", "the next call through rratelimiter repairs it"},
	"future_members":     {Warning, "their permits come back late", "keep the clocks of machines that run Redisson in step"},
	"client_no_ttl":      {Warning, "each restart of a client leaves two keys that are never removed", "give the limiter a keep-alive time, or run SCAN for old clients; rratelimiter's own clients expire"},
	"keys_of_other_type": {Note, "they take memory and are not read", "delete them"},
	"used_up": {
		Note, "requests are refused until permits come back",
		"rrl show NAME says when, and who has them; rrl update-rate NAME RATE changes the rate",
	},
	"not_all_read": {Note, "what was not read was not judged", ""},
}
