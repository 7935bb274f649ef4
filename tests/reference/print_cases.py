"""Writes tests/unit/print_cases.h: arrays, and the texts that NumPy prints for them. Run it with NumPy installed:

    python tests/reference/print_cases.py > tests/unit/print_cases.h
"""
import numpy as np

cases = []
f32, f64 = np.float32, np.float64


def case(name, a):
    """Adds an array whose bytes are written."""
    cases.append((name, np.asarray(a), 0, 1))


def rule(name, dtype, shape, scale, modulus=1 << 40):
    """Adds an array by a rule: element i is (i % modulus) * scale."""
    n = int(np.prod(shape))
    cases.append((name, (np.arange(n) % modulus * scale).astype(dtype).reshape(shape), scale, modulus))


case("tenths", np.arange(6, dtype=f32).reshape(2, 3) / 10)
case("whole", np.arange(4, dtype=f64))
case("signs", np.array([-1.5, 2, -30.25, 0], f64))
case("thirds", np.arange(1, 8, dtype=f64) / 3)
case("thirds32", np.arange(1, 8, dtype=f32) / 3)
case("large", np.array([1e8, 1, 2.5], f64))
case("small", np.array([1e-5, 0, 3], f64))
case("ratio", np.array([0.001, 1.5, 2000], f32))
case("ratio_1000", np.array([0.5, 500], f64))
case("far", np.array([1e-300, 1e300, -2.5], f64))
case("special", np.array([np.nan, np.inf, -np.inf, 1.25], f64))
case("only_special", np.array([np.nan, -np.inf], f32))
case("inf_row", np.array([np.inf, 12345.678], f32))
case("negative_zero", np.array([-0.0, 0.0, 1], f64))
case("denormal", np.array([5e-324, 1], f64))
case("half", np.array([0.1, 65504, 6.2e-5], np.float16))
case("half_plain", np.array([0.1, 0.25, 3.14], np.float16))
case("long_row", (np.arange(40, dtype=f64) * 1.37 - 20))
case("long_rows", (np.arange(60, dtype=f32).reshape(2, 30) * 0.7))
case("cube", np.arange(24, dtype=np.int64).reshape(2, 3, 4))
case("deep", np.arange(16, dtype=np.int32).reshape(2, 2, 2, 2) - 8)
case("bytes", np.array([0, 7, 255], np.uint8))
case("big_integers", np.array([-2**63, 2**63 - 1, 0], np.int64))
case("big_unsigned", np.array([2**64 - 1, 2**63, 0], np.uint64))
case("int8", np.array([[-128, 127], [0, 5]], np.int8))
case("uint16", np.array([65535, 1], np.uint16))
case("bools", np.array([[True, False], [False, False]]))
case("all_true", np.array([True, True]))
case("empty", np.zeros((0, 3), f32))
rule("sum_line", f64, (1001,), 1)
rule("sum_integers", np.int64, (2000,), 1)
rule("sum_square", f32, (40, 50), 0.125)
rule("sum_cube", f64, (11, 12, 13), 0.1)
rule("sum_thin", f32, (2, 600), 1000)
rule("at_threshold", np.int32, (20, 50), 1, 7)
for name, v in [("scalar", f64(3.5)), ("scalar_one", f32(1)), ("scalar_tenth", f32(0.1)), ("scalar_huge", f64(1.5e16)),
                ("scalar_round", f64(1e16)), ("scalar_tiny", f64(0.00001)), ("scalar_pi", f64(np.pi)),
                ("scalar_int", np.int64(-42)), ("scalar_bool", np.bool_(True)), ("scalar_nan", f64(np.nan)),
                ("scalar_half", np.float16(0.1)), ("scalar_big32", f32(16777216)), ("scalar_third", f32(1) / f32(3))]:
    case(name, v)
rng = np.random.default_rng(0)
case("normal", rng.standard_normal((3, 5)))
case("normal32", rng.standard_normal((4, 9)).astype(f32))
case("wide", (rng.standard_normal(12) * 10.0 ** rng.integers(-6, 7, 12)))
case("uniform32", rng.random((2, 3, 4)).astype(f32))
names = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8",
         "int8": "I8", "uint16": "U16", "uint64": "U64", "bool": "BOOL"}


def c_text(text):
    """Returns a string literal of C, a line for each line of the text."""
    lines = text.split("\n")
    return "\n     ".join('"' + line + ('\\n"' if i + 1 < len(lines) else '"') for i, line in enumerate(lines))


print("/* Arrays, and the texts that NumPy", np.__version__, "prints for them. Written by tests/reference/print_cases.py. */")
print("static const print_case cases[] = {")
for name, a, scale, modulus in cases:
    dims = ", ".join(map(str, a.shape)) or "0"
    digits = a.tobytes().hex()
    data = "NULL" if scale else "\n     ".join(f'"{digits[i:i + 96]}"' for i in range(0, max(len(digits), 1), 96))
    print(f'    {{"{name}", TG_{names[str(a.dtype)]}, {a.ndim}, {{{dims}}},')
    print(f"     {data}, {scale}, {modulus},")
    print(f"     {c_text(str(a))}}},")
print("};")
