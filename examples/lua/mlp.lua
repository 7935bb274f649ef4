-- The program of mlp.c in LuaJIT: luajit examples/lua/mlp.lua
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local tg = require("tapegrad")

local ctx = tg.context{seed = 1, device = "cpu"}
local x, y = ctx:randn{64, 8}, ctx:randn{64, 1}
local w1, b1 = ctx:param("fc1.weight", {32, 8}, 0.35), ctx:param("fc1.bias", {32}, 0)
local w2, b2 = ctx:param("fc2.weight", {1, 32}, 0.18), ctx:param("fc2.bias", {1}, 0)
local opt = ctx:adamw({w1, b1, w2, b2}, {lr = 1e-2})
local t = ctx:tape()

local last
for step = 0, 199 do
  local h = t.relu(t.linear(x, w1, b1))
  local loss = t.mse(t.linear(h, w2, b2), y)
  t:backward(loss)
  opt:step()
  last = tg.item(loss)
  if step % 50 == 0 then print(string.format("%4d  %.5f", step, last)) end
  t:reset()
end

-- A mistake is an error of Lua, which names the place in this file.
local fine, message = pcall(function() return t.softmax(x, {dim = 5}) end)
print(message)

opt:free()
t:free()
ctx:free()
assert(last < 0.01 and not fine and message:find("mlp.lua"))
