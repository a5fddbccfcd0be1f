-- Lua 5.4, which some servers have, keeps unpack in table.
local unpack = unpack or table.unpack
