-- Tells what fixed_window would answer, and changes nothing.
--
-- KEYS
--   1 count, as for fixed_window
-- ARGV
--   1, 2, 3, ...  as for fixed_window
-- Returns
--   what fixed_window does

local peeks = true
--- @include "decide_window"
