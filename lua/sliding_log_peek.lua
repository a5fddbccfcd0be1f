-- Tells what sliding_log would answer, and changes nothing.
--
-- KEYS
--   1 log  2 thresholds, as for sliding_log
-- ARGV
--   1, 2, 3, 4, 5, 6, ...  as for sliding_log; 5 is ''
-- Returns
--   what sliding_log does, but never 'again'

--- @include "read_log"
local peeks = true
--- @include "decide_log"
