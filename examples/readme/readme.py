"""README's program in Python. README has the lines from "begin" to "end"."""
# begin
import tapegrad as tg

x, y = tg.randn((64, 8)), tg.randn((64, 1))
w = tg.randn((1, 8), std=0.1, requires_grad=True)
opt = tg.optim.AdamW([w], lr=1e-2)
for step in range(200):
    loss = tg.ops.mse(x.linear(w), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
# end
assert loss.item() < 1.5
