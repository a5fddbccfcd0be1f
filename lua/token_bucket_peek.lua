-- Tells what token_bucket would answer, and changes nothing.
--
-- KEYS
--   1 tokens  2 time, as for token_bucket
-- ARGV
--   1, 2, 3, 4, 5, 6, ...  as for token_bucket
-- Returns
--   what token_bucket does

local peeks = true
--- @include "decide_bucket"
