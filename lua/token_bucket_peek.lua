-- Tells what token_bucket would answer, and changes nothing.
--
-- KEYS
--   1 tokens: how many are in the bucket, below 0 where some are borrowed
--   2 time: epoch seconds of the last refill
--   Without both the bucket is full.
-- ARGV
--   1  capacity
--   2  refill: tokens added each interval
--   3  interval in seconds
--   4  how many tokens may be borrowed
--   5  ms in which an empty bucket fills
--   6, 7, ...  tokens, count: that many requests for so many tokens each
-- Returns
--   limit, free, taken, last, reset, waits...
--      limit: the capacity, with what may be borrowed
--      free: tokens that could be taken before
--      taken: the tokens granted
--      last: epoch seconds of the last refill
--      reset: ms until the bucket is full; 0 where it is
--      waits: for each run of which a request was refused, save those above the
--      limit: the ms until it could pass
--   CORRUPT <key's number> <field> <why>

--- @include "bucket"
--- @include "clock"
--- @include "corrupt"
--- @include "integer"
--- @include "walk"

local function store()
  return nil
end

--- @include "decide_bucket"
