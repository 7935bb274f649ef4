"""README's program under PyTorch. README has the lines from "begin" to "end"."""
# begin
import torch
import tapegrad.torch  # registers the backend

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
fast = torch.compile(model, backend='tapegrad')
x, y = torch.randn(64, 8), torch.randn(64, 1)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(100):
    loss = torch.nn.functional.mse_loss(fast(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
# end
assert loss.item() < 1.0
