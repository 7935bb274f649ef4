"""Prints the values that tests/unit/optim_reference.h commits: parameters after steps of PyTorch's optimizers in
float64, on the gradients and the function that tests/unit/test_methods.c and test_lbfgs.c compute too.

    python3 tests/reference/optimizers.py >tests/unit/optim_reference.h
"""

import math
import textwrap

import torch

START = [1.0, -0.5, 0.25, 2.0, -3.0]
STEPS = 20


def gradient(x, step):
    """The gradient of step number `step`, from 1, at x."""
    return [(i + 1) * 0.25 * (v - 0.5) + 0.3 * math.sin(step + i) for i, v in enumerate(x)]


def elementwise(make):
    """Returns the parameters after STEPS steps."""
    x = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = make([x])
    for step in range(1, STEPS + 1):
        x.grad = torch.tensor(gradient(x.tolist(), step), dtype=torch.float64)
        optimizer.step()
    return x.tolist()


def rosenbrock(x):
    """The chained Rosenbrock function."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def lbfgs(**options):
    """Returns the parameters and the loss after each of 4 steps."""
    x = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], **options)

    def closure():
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        return loss

    values = []
    for _ in range(4):
        optimizer.step(closure)
        values += x.tolist() + [rosenbrock(x).item()]
    return values


def table(name, size, rows):
    print(f"static const double {name}[][{size}] = {{")
    for row in rows:
        cells = " ".join(f"{v!r}," for v in row)[:-1]
        print(textwrap.fill("{" + cells + "},", 120, initial_indent="    ", subsequent_indent="     "))
    print("};")


RMSPROP = [dict(lr=0.01), dict(lr=0.01, alpha=0.9, eps=1e-3, weight_decay=0.1),
           dict(lr=0.01, centered=True, alpha=0.95), dict(lr=0.01, momentum=0.9),
           dict(lr=0.01, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.05)]
ADAGRAD = [dict(lr=0.1), dict(lr=0.1, initial_accumulator_value=0.5, eps=1e-3, weight_decay=0.1)]
LBFGS = [dict(max_iter=5, line_search_fn="strong_wolfe"),
         dict(lr=0.5, max_iter=8, max_eval=30, history_size=3, line_search_fn="strong_wolfe")]

print("/* Values that PyTorch's optimizers compute; tests/reference/optimizers.py wrote them. */")
print("#ifndef TG_TESTS_OPTIM_REFERENCE_H\n#define TG_TESTS_OPTIM_REFERENCE_H\n")
print("/* The parameters after 20 steps, for each row of options in test_methods.c. */")
table("rmsprop_after", len(START), [elementwise(lambda p, o=o: torch.optim.RMSprop(p, **o)) for o in RMSPROP])
table("adagrad_after", len(START), [elementwise(lambda p, o=o: torch.optim.Adagrad(p, **o)) for o in ADAGRAD])
print("\n/* The parameters and the loss after each of 4 steps, for each row of options in test_lbfgs.c. */")
table("lbfgs_after", 4 * (len(START) + 1), [lbfgs(**o) for o in LBFGS])
print("\n#endif")
