"""The Lua scripts that Redis runs. Each is one atomic step over all counters of a request, and uses the clock of Redis.

A window is a packed string with an expiry: 32 counters, indexed by `tick % 32`, and the last tick. A concurrency limit is a
hash: the number of slots that each owner (a gateway process) holds. Another hash has the last heartbeat of each owner; the
slots of an owner without a heartbeat for LEASE_US are free.

ADMIT and SETTLE may be sent again, because the reply to the first call may be lost: a key for each admission holds the reply
of ADMIT, or notes that the admission is settled. It lives until a later ADMIT says that the gateway has got the reply, or for
a day, the longest window. A SETTLE without the reply of ADMIT cancels the admission, also one that arrives later.

The arithmetic is that of `windows.py` in doubles. It is exact while counts times microseconds are below 2^53, which for a
limit per minute means counts up to 4.8 billion.
"""

from __future__ import annotations

from typing import Final

from penstock.gateway.limits.windows import TICKS

LEASE_US: Final = 15_000_000
_MARKER_MS: Final = 86_400_000

_COMMON: Final = f"""
local TICKS, LEASE, MARKER_MS, SETTLED = {TICKS}, {LEASE_US}, {_MARKER_MS}, 'settled'

local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function load(key, now_tick)
  local packed = redis.call('GET', key)
  local ring = packed and cmsgpack.unpack(packed)
  local last = ring and ring[TICKS + 1]
  if not ring or math.abs(now_tick - last) >= TICKS then
    ring = {{}}
    for i = 1, TICKS do ring[i] = 0 end
  elseif now_tick < last then
    return ring, last
  else
    for skipped = last + 1, now_tick do ring[skipped % TICKS + 1] = 0 end
  end
  ring[TICKS + 1] = now_tick
  return ring, now_tick
end

local function save(key, ring, width)
  redis.call('SET', key, cmsgpack.pack(ring), 'PX', math.ceil(TICKS * width / 1000) + 1000)
end

-- Add to the counter of a tick, unless it has left the window. An increase goes to the current tick.
local function change(key, tick, amount, width, now)
  local ring, current = load(key, math.floor(now / width))
  if amount > 0 then tick = current end
  if amount ~= 0 and tick > current - TICKS and tick <= current then
    local slot = tick % TICKS + 1
    ring[slot] = math.max(0, ring[slot] + amount)
    save(key, ring, width)
  end
end

local function release(key, owner)
  local held = tonumber(redis.call('HGET', key, owner) or 0)
  if held > 1 then
    redis.call('HINCRBY', key, owner, -1)
  elseif held == 1 then
    redis.call('HDEL', key, owner)
  end
end
"""

ADMIT: Final = (
    _COMMON
    + """
-- KEYS: owners, admission, windows, concurrency limits, admissions whose last reply has arrived
-- ARGV: now or '', owner, number of windows, {limit, amount, width} of each, {limit} of each concurrency limit
--       a negative amount is checked, but not charged
-- reply: 1 or 0, {tick, remaining, reset, wait} of each window, {free slots} of each concurrency limit
local stored = redis.call('GET', KEYS[2])
if stored == SETTLED then return {0} end
if stored then return cmsgpack.unpack(stored) end
local now, owner, windows = clock(), ARGV[2], tonumber(ARGV[3])
local last_slot = 2 + windows + #ARGV - 3 - 3 * windows
for k = last_slot + 1, #KEYS do redis.call('DEL', KEYS[k]) end
local reply, rings, admitted = {0}, {}, true
for w = 1, windows do
  local a = 3 * w + 1
  local limit, amount, width = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local charged = math.max(amount, 0)
  amount = math.abs(amount)
  local now_tick = math.floor(now / width)
  local ring, tick = load(KEYS[2 + w], now_tick)
  local elapsed = tick == now_tick and now - tick * width or 0
  local total = 0
  for i = 1, TICKS do total = total + ring[i] end
  local oldest = ring[(tick + 1) % TICKS + 1]
  local need = (total + amount - limit) * width - oldest * elapsed
  local wait = 0
  if need > 0 then
    admitted = false
    wait = TICKS * width
    local tick_start = -elapsed
    for age = TICKS - 1, 0, -1 do
      local count = ring[(tick - age) % TICKS + 1]
      local left = count * (width + math.min(tick_start, 0))
      if need <= left then
        wait = math.max(tick_start, 0) + math.ceil(need / count)
        break
      end
      need = need - left
      tick_start = tick_start + width
    end
  end
  rings[w] = {ring, tick, elapsed, total, oldest, limit, charged, width, wait}
end

local free = {}
for s = 3 + windows, last_slot do
  local held = 0
  local all = redis.call('HGETALL', KEYS[s])
  for i = 1, #all, 2 do
    local count = tonumber(all[i + 1])
    if all[i] ~= owner and now - tonumber(redis.call('HGET', KEYS[1], all[i]) or 0) > LEASE then
      redis.call('HDEL', KEYS[s], all[i])
      count = 0
    end
    held = held + count
  end
  local left = tonumber(ARGV[3 + 3 * windows + (s - 2 - windows)]) - held
  if left <= 0 then admitted = false end
  free[#free + 1] = left
end

for w = 1, windows do
  local ring, tick, elapsed, total, oldest, limit, amount, width, wait = unpack(rings[w])
  if admitted then
    ring[tick % TICKS + 1] = ring[tick % TICKS + 1] + amount
    total = total + amount
    save(KEYS[2 + w], ring, width)
  end
  local reset = 0
  for age = 0, TICKS - 1 do
    if ring[(tick - age) % TICKS + 1] > 0 then
      reset = (TICKS - age) * width - elapsed
      break
    end
  end
  reply[#reply + 1] = tick
  reply[#reply + 1] = math.max(0, math.floor(((limit - total) * width + oldest * elapsed) / width))
  reply[#reply + 1] = reset
  reply[#reply + 1] = wait
end
for s, left in ipairs(free) do
  if admitted then
    redis.call('HINCRBY', KEYS[2 + windows + s], owner, 1)
    redis.call('PEXPIRE', KEYS[2 + windows + s], 4 * LEASE / 1000)
  end
  reply[#reply + 1] = left
end
if admitted then
  reply[1] = 1
  if #free > 0 then redis.call('HSET', KEYS[1], owner, string.format('%.0f', now)) end
  redis.call('SET', KEYS[2], cmsgpack.pack(reply), 'PX', MARKER_MS)
end
return reply
"""
)

SETTLE: Final = (
    _COMMON
    + """
-- KEYS: admission, windows, concurrency limits
-- ARGV: now or '', owner, number of windows, 1 or 0 if the reply of ADMIT is not known,
--       {tick, reserved, tokens, width} of each window; without the reply, the tick is that of the admission
local now, owner, windows, known = clock(), ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local stored = redis.call('GET', KEYS[1])
if stored == SETTLED then return 0 end
redis.call('SET', KEYS[1], SETTLED, 'PX', MARKER_MS)
if not stored and not known then return 0 end
local reply = stored and cmsgpack.unpack(stored)
for w = 1, windows do
  local a = 4 * w + 1
  local tick = known and tonumber(ARGV[a]) or reply[4 * w - 2]
  change(KEYS[1 + w], tick, ARGV[a + 2] - ARGV[a + 1], tonumber(ARGV[a + 3]), now)
end
for s = 2 + windows, #KEYS do release(KEYS[s], owner) end
return 1
"""
)

HEARTBEAT: Final = (
    _COMMON
    + """
-- KEYS: owners, concurrency limits of which slots are held
-- ARGV: now or '', owner
local now = clock()
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], 240 * LEASE / 1000)
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if now - tonumber(all[i + 1]) > 40 * LEASE then redis.call('HDEL', KEYS[1], all[i]) end
end
for s = 2, #KEYS do redis.call('PEXPIRE', KEYS[s], 4 * LEASE / 1000) end
return 1
"""
)
