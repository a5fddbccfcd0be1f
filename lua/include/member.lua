--- @include "corrupt"

-- Returns how many permits a member of the permits set stands for; nil where
-- it has the layout of no Redisson release. All layouts end in the permits, as
-- four little-endian bytes.
local function permits_of(member)
  local length = #member
  if length < 5 or (string.byte(member, 1, 1) + 5 ~= length and length ~= 8 and
      not (length == 20 and string.sub(member, 1, 8) == '\8\0\0\0\0\0\0\0')) then
    return nil
  end
  local a, b, c, d = string.byte(member, -4, -1)
  return a + b * 256 + c * 65536 + d * 16777216
end

-- Returns the member of the same attempt that stands for other permits.
local function with_permits(member, permits)
  return string.sub(member, 1, -5) .. string.char(permits % 256, math.floor(permits / 256) % 256,
    math.floor(permits / 65536) % 256, math.floor(permits / 16777216) % 256)
end

-- Returns the error reply for a member of no known layout. place is the number
-- of the permits set in KEYS.
local function corrupt_member(place, member)
  local hex = string.gsub(string.sub(member, 1, 25), '.', function(char)
    return string.format('%02x', string.byte(char, 1, 1))
  end)
  return corrupt(place, 'member', 'has no known layout: ' .. hex)
end

-- Returns the permits of all the rows together, or nil with an error reply.
local function sum_of(rows, place)
  local sum = 0
  for _, member in ipairs(rows) do
    local permits = permits_of(member)
    if not permits then
      return nil, corrupt_member(place, member)
    end
    sum = sum + permits
  end
  return sum
end
