-- Tapegrad for LuaJIT, in one file: every op by name, with named arguments, and options by the library's own tables.
--
--   local tg = require("tapegrad")
--   local ctx = tg.context{seed = 1}
--   local t = ctx:tape()
--   local y = t.softmax(x, {dim = 1})
--
-- The library is found as libtapegrad.so, or where the environment variable TAPEGRAD_LIBRARY says.
local ffi = require("ffi")

ffi.cdef [[
typedef struct tg_ctx tg_ctx;
typedef struct tg_tensor tg_tensor;
typedef struct tg_tape tg_tape;
typedef struct tg_optim tg_optim;
typedef struct { int64_t ndim, dim[8]; } tg_shape;
typedef struct {
  const char *name; int kind, n;
  union { bool boolean; int64_t integer; double number; const char *text; const int64_t *list; tg_tensor *tensor; };
} tg_value;
typedef struct {
  const char *name; int kind, count; size_t offset, bytes; const char *of, *doc; bool required; size_t length_at;
} tg_field;
typedef struct {
  const char *name; size_t size; int n_fields; const tg_field *fields; const void *defaults; const char *doc;
} tg_struct;

const tg_struct *tg_struct_find(const char *name);
int tg_struct_fill(const char *name, void *s, size_t size);
tg_ctx *tg_ctx_new(const void *config);
void tg_ctx_free(tg_ctx *ctx);
int tg_ctx_status(const tg_ctx *ctx);
const char *tg_ctx_message(const tg_ctx *ctx);
void tg_ctx_clear(tg_ctx *ctx);
tg_tape *tg_tape_new(tg_ctx *ctx);
void tg_tape_free(tg_tape *t);
void tg_tape_reset(tg_tape *t);
int tg_tape_set_site(tg_tape *t, const char *file, int line);
int tg_op_call(tg_tape *t, const char *name, tg_tensor *const *in, int n_in, const tg_value *values, int n_values,
               tg_tensor **out, int n_out);
tg_tensor *tg_randn(tg_ctx *ctx, int dtype, tg_shape shape, double std);
tg_tensor *tg_param_new(tg_ctx *ctx, const char *name, int dtype, tg_shape shape, double std);
void tg_drop(tg_tensor *x);
double tg_item(tg_tensor *x);
int tg_backward(tg_tape *t, tg_tensor *root);
tg_optim *tg_adamw_new(tg_ctx *ctx, tg_tensor *const *params, int n, const void *opts);
void tg_optim_free(tg_optim *o);
int tg_optim_step(tg_optim *o);
int tg_optim_zero_grad(tg_optim *o);
]]

local C = ffi.load(os.getenv("TAPEGRAD_LIBRARY") or "tapegrad")
local tg = {}

-- Raises the error of the context, if it has one, and clears it.
local function check(ctx)
  if C.tg_ctx_status(ctx) == 0 then return end
  local message = ffi.string(C.tg_ctx_message(ctx))
  C.tg_ctx_clear(ctx)
  error(message, 0)
end

-- How a field of a struct of options is stored, by its kind (tg_field_kind of fields.h).
local stored = {[0] = "bool *", "int *", "int64_t *", "uint64_t *", "size_t *", "double *", "int *", "int *", "const char **"}

-- Returns a struct of options of this name with the values of a Lua table, in memory that Lua frees.
local function options(name, values)
  local of = C.tg_struct_find(name)
  local s = ffi.new("char[?]", of.size)
  C.tg_struct_fill(name, s, of.size)
  local known = {}
  for i = 0, of.n_fields - 1 do known[ffi.string(of.fields[i].name)] = of.fields[i] end
  for key, value in pairs(values or {}) do
    local field = known[key] or error(name .. " has no field " .. key)
    local pointer = stored[field.kind] or error(name .. "." .. key .. " is not a number, a bool or a text")
    ffi.cast(pointer, s + field.offset)[0] = value
  end
  return s
end

local function shape(sizes) return ffi.new("tg_shape", #sizes, sizes) end

-- Returns a table as an array of tensors, and its length.
local function array(list) return ffi.new("tg_tensor *[?]", math.max(#list, 1), list), #list end

-- Stores a named argument. Lua's numbers are doubles; the library converts those without a fraction. What `v` points to
-- is kept in `alive` during the call.
local function set_value(v, name, value, alive)
  v.name = name
  if type(value) == "boolean" then v.kind, v.boolean = 1, value
  elseif type(value) == "number" then v.kind, v.number = 3, value
  elseif type(value) == "string" then v.kind, v.text = 4, value
  elseif type(value) == "table" then
    local list = ffi.new("int64_t[?]", #value, value)
    alive[#alive + 1] = list
    v.kind, v.n, v.list = 5, #value, list
  else v.kind, v.tensor = 6, value end
end

-- Calls the op `name` on tensors, and, if the last argument is a table, with its named arguments.
local function call(tape, name, ...)
  local inputs, named, alive, n = {...}, {}, {}, 0
  if type(inputs[#inputs]) == "table" then named = table.remove(inputs) end
  local values, out = ffi.new("tg_value[32]"), ffi.new("tg_tensor *[1]")
  for key, value in pairs(named) do
    set_value(values[n], key, value, alive)
    n = n + 1
  end
  local place = debug.getinfo(3, "Sl")
  C.tg_tape_set_site(tape.c, place.short_src, place.currentline)
  local x, n_in = array(inputs)
  C.tg_op_call(tape.c, name, x, n_in, values, n, out, 1)
  check(tape.ctx)
  return out[0]
end

local tape = {}
function tape:backward(root) C.tg_backward(self.c, root); check(self.ctx) end
function tape:reset() C.tg_tape_reset(self.c) end
function tape:free() C.tg_tape_free(self.c) end

-- A tape has a method for each thing that a tape does, and a function for every op.
local tape_meta = {__index = function(t, name)
  return tape[name] or function(...) return call(t, name, ...) end
end}

local optimizer = {}
optimizer.__index = optimizer
function optimizer:step() C.tg_optim_step(self.c); C.tg_optim_zero_grad(self.c); check(self.ctx) end
function optimizer:free() C.tg_optim_free(self.c) end

local context = {}
context.__index = context
function context:checked(x) check(self.c); return x end
function context:tape() return setmetatable({c = self:checked(C.tg_tape_new(self.c)), ctx = self.c}, tape_meta) end
function context:randn(sizes) return self:checked(C.tg_randn(self.c, 0, shape(sizes), 1)) end
function context:param(name, sizes, std) return self:checked(C.tg_param_new(self.c, name, 0, shape(sizes), std)) end
function context:adamw(params, values)
  local x, n = array(params)
  local o = self:checked(C.tg_adamw_new(self.c, x, n, options("tg_adamw_opts", values)))
  return setmetatable({c = o, ctx = self.c}, optimizer)
end
function context:free() C.tg_ctx_free(self.c) end

function tg.context(values)
  local ctx = C.tg_ctx_new(options("tg_config", values))
  check(ctx)
  return setmetatable({c = ctx}, context)
end
tg.item, tg.drop = C.tg_item, C.tg_drop

return tg
