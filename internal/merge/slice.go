package merge

import "time"

// SliceStart returns when the slice began in which a time lies; both are in ms of the server's clock, as is the interval.
func SliceStart(ms, interval int64) int64 {
	return (ms*slicesOf/interval*interval + slicesOf - 1) / slicesOf
}

// Late returns by how much a permit may come back late that was granted by a member which was merged.
func Late(interval time.Duration) time.Duration { return interval / slicesOf }
