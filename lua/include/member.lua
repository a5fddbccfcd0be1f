--- @include "corrupt"

-- Returns the permits of a member, which are its last four bytes, little-endian; nil if it has no Redisson's layout.
local function permits_of(member)
  local length = #member
  if length < 5 or (string.byte(member, 1, 1) + 5 ~= length and length ~= 8 and
      not (length == 20 and string.sub(member, 1, 8) == '\8\0\0\0\0\0\0\0')) then
    return nil
  end
  local a, b, c, d = string.byte(member, -4, -1)
  return a + b * 256 + c * 65536 + d * 16777216
end

-- Returns the member of the same call for other permits. Ours in layout C hold them where readers of D look, too.
local function with_permits(member, permits)
  local packed = string.char(permits % 256, math.floor(permits / 256) % 256,
    math.floor(permits / 65536) % 256, math.floor(permits / 16777216) % 256)
  local id = string.sub(member, 1, -5)
  if #member == 20 and string.sub(member, 10, 13) == string.sub(member, 17, 20) then
    id = string.sub(member, 1, 9) .. packed .. string.sub(member, 14, 16)
  end
  return id .. packed
end

-- Returns the number at the end of a member's id, which tells apart the requests of a call that have one each.
local function number_of(member)
  local a, b, c = string.byte(member, -7, -5)
  return a + b * 256 + c * 65536
end

-- Returns the member with the number that comes so many after its own.
local function later(member, places)
  local n = number_of(member) + places
  return string.sub(member, 1, -8) .. string.char(n % 256, math.floor(n / 256) % 256, math.floor(n / 65536) % 256) ..
    string.sub(member, -4)
end

local function hex(bytes)
  return (string.gsub(bytes, '.', function(char)
    return string.format('%02x', string.byte(char, 1, 1))
  end))
end

-- Returns the permits of all the rows, or nil with an error reply for one of no known layout; place is as for corrupt.
local function sum_of(rows, place)
  local sum = 0
  for _, member in ipairs(rows) do
    local permits = permits_of(member)
    if not permits then
      return nil, corrupt(place, 'member', 'has no known layout: ' .. hex(string.sub(member, 1, 25)))
    end
    sum = sum + permits
  end
  return sum
end
