"""Random expressions, templates and conversations for test_templates.py."""
import json
import random

VARIABLES = {
    'n': 3, 'm': -7, 'x': 2.5, 'z': 0, 't': True, 'f': False, 'o': None,
    's': 'Hello, world', 'e': '', 'u': ' \tGrüße, 世界 🎉\n', 'q': "it's \"quoted\"\\", 'w': 'one two  three\ttwo',
    'l': [3, 1, 2], 'k': ['b', 'A', 'c', 'b'], 'p': [], 'd': {'a': 1, 'b': [1, {'c': 'deep'}], 'items': 'own', 'é': None},
    'r': [{'role': 'user', 'n': 2, 'tags': ['x']}, {'role': 'assistant', 'n': 1}, {'role': 'user', 'n': 0, 'tags': []}],
}
STRINGS = ["''", "'a'", "'l'", "'two'", "', '", "'role'", "'user'", "'items'", "'Zz é'", "'%s'", "'\\n x\\t'", "'12'", "'-4.5e1'", "'0x1f'"]
NAMES = list(VARIABLES) + ['nothing', 'one', 'two']
FILTERS = ['trim', 'upper', 'lower', 'length', 'list', 'first', 'last', 'join', "join(', ')", 'tojson', 'tojson(indent=2)',
           'tojson(indent=0)', 'string', 'int', 'float', 'default(7)', "default('d', true)", 'sort', 'sort(reverse=true)', 'reverse|list',
           'unique|list', 'capitalize', 'title', 'abs', 'round', 'round(1)', 'round(-1)', 'count', 'items|list', 'indent', "indent(2, true)",
           'replace("o", "0")', "replace('l', '', 1)", 'map("upper")|list', "map(attribute='role')|list", "selectattr('tags')|list",
           "selectattr('role', 'equalto', 'user')|list", "rejectattr('n', '>', 0)|list", 'select|list', "reject('none')|list", 'select("string")|list',
           'dictsort', 'sum', 'min', 'max', 'batch(2)|list', 'wordcount', "trim('H ')", "sort(attribute='n')",
           "map(attribute='n', default=5)|list", "tojson(sort_keys=true)", 'tojson(ensure_ascii=true)', "tojson(separators=(',', ':'))"]
TESTS = ['defined', 'undefined', 'none', 'string', 'mapping', 'iterable', 'sequence', 'number', 'integer', 'float', 'boolean', 'true',
         'false', 'odd', 'even', 'divisibleby(3)', 'callable', 'lower', 'upper', "equalto('a')", 'eq 3', 'ne none', "in ['a', 3]",
         "in d", '> 1', 'le(2)', 'sameas(none)']
METHODS = ['strip()', "strip('Hd')", 'lstrip()', 'rstrip()', 'split()', "split(', ')", "split('o', 1)", "rsplit(' ', 1)", 'rsplit(None, 1)',
           'split(None, 1)', "startswith('He')", "endswith(('d', 'x'))", 'upper()', 'lower()', 'title()', 'capitalize()', "replace('o', '')",
           "find('o')", "rfind('o', 2)", "count('l')", "count('')", 'splitlines()', 'splitlines(true)', 'isdigit()', 'isalpha()', 'isspace()',
           "join(['x', 'y'])", 'items()', 'keys()|list', 'values()', "get('a')", "get('zz', 5)", 'index(1)', 'islower()', "removeprefix('He')",
           "partition(', ')", "rpartition('o')", "startswith('l', 2)"]
ATTRIBUTES = ['a', 'b', 'role', 'items', 'missing', '0', 'tags']


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def atom(self):
        r = self.r
        return r.choice([lambda: r.choice(NAMES), lambda: str(r.randint(-3, 12)), lambda: r.choice(['1.5', '0.1', '1e3', '1e20', '2.0', '3.7e-7']),
                         lambda: r.choice(STRINGS), lambda: r.choice(['true', 'false', 'none', 'True', 'None'])])()

    def expression(self, depth):
        r = self.r
        if depth <= 0 or r.random() < 0.12:
            return self.atom()
        e = lambda: self.expression(depth - 1 - r.randint(0, 1))
        kinds = [
            lambda: f"{e()} {r.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {e()}",
            lambda: f"({e()} {r.choice(['+', '-', '*', '**', '~'])} {e()})",
            lambda: f"{e()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()}",
            lambda: f"{self.atom()} {r.choice(['<', '<='])} {self.atom()} {r.choice(['<', '=='])} {self.atom()}",
            lambda: f"({e()} {r.choice(['and', 'or'])} {e()})",
            lambda: f"not {e()}",
            lambda: f"-{self.atom()}",
            lambda: f"({e()} if {e()} else {e()})",
            lambda: f"({e()} if {e()})",
            lambda: f"[{', '.join(e() for _ in range(r.randint(0, 3)))}]",
            lambda: f"({e()}, {e()})",
            lambda: '{' + ', '.join(f'{self.atom()}: {e()}' for _ in range(r.randint(0, 3))) + '}',
            lambda: f"{self.primary(depth)}|{r.choice(FILTERS)}",
            lambda: f"{self.primary(depth)}|{r.choice(FILTERS)}",
            lambda: f"{self.primary(depth)} is {r.choice(['', 'not '])}{r.choice(TESTS)}",
            lambda: f"{self.primary(depth)}.{r.choice(METHODS)}",
            lambda: f"{self.primary(depth)}.{r.choice(ATTRIBUTES)}",
            lambda: f"{self.primary(depth)}[{e()}]",
            lambda: f"{r.choice(NAMES)}[{self.part()}:{self.part()}{r.choice(['', ':' + self.part()])}]",
            lambda: f"range({r.randint(-2, 4)}, {r.randint(-3, 6)}, {r.choice([1, 2, -1, 3])})|list",
            lambda: f"dict({self.atom_name()}={e()})",
            lambda: f"'{r.choice(['%s|%d', '%5.1f', '%-4s.', '%03d', '%r', '%x %%'])}' % {r.choice([self.atom, lambda: f'({self.atom()}, {self.atom()})'])()}",
        ]
        return r.choice(kinds)()

    def atom_name(self):
        return self.r.choice(['a', 'b', 'c'])

    def part(self):
        return self.r.choice(['', '', '0', '1', '2', '-1', '-2', 'n', '10'])

    def primary(self, depth):
        return self.r.choice([self.atom, lambda: f'({self.expression(depth - 1)})', lambda: self.r.choice(['s', 'u', 'w', 'k', 'l', 'r', 'd'])])()

    # ---- Templates ----

    def text(self):
        return self.r.choice(['', ' ', '\n', '  \n', 'text', ' a\n  b', '\n\n', '\t', 'x\r\ny', '{', '%}', '# '])

    def tag(self, body):
        r = self.r
        return '{%' + r.choice(['', '', '-', '+']) + ' ' + body + ' ' + r.choice(['', '', '-', '+']) + '%}'

    def output(self):
        r = self.r
        return '{{' + r.choice(['', '', '-']) + ' ' + self.expression(r.randint(0, 2)) + ' ' + r.choice(['', '', '-']) + '}}'

    def body(self, depth, loop=False):
        return ''.join(self.text() + self.statement(depth, loop) for _ in range(self.r.randint(0, 3))) + self.text()

    def loop(self, depth):
        r = self.r
        over = r.choice(['l', 'k', 'r', 'd', 's', 'range(3)', 'nothing', 'p', 'd.items()|list', '[[1, 2], [3, 4]]', "r|selectattr('tags')", 'l[::-1]'])
        target = 'a, b' if over in ('d.items()|list', '[[1, 2], [3, 4]]') else 'i'
        test = r.choice(['', '', '', ' if i', ' if loop is undefined', ' if n']) if target == 'i' else ''
        use = r.choice(['', '{{ loop.index }}', '{{ loop.last }}', '{{ loop.length }}-{{ loop.revindex }}', '{{ loop.previtem }}', '{{ loop.nextitem is defined }}',
                        "{{ loop.cycle('a', 'b') }}", '{{ loop.changed(i) }}' if target == 'i' else '', '{% if loop.index > 2 %}{% break %}{% endif %}',
                        '{% if loop.first %}{% continue %}{% endif %}'])
        middle = self.tag('else') + self.body(depth - 1) if r.random() < 0.3 else ''
        return self.tag(f'for {target} in {over}{test}') + use + self.body(depth - 1, True) + '{{ n }}{{ i }}' + middle + self.tag('endfor')

    def template(self):
        """The names that statements set are set at the beginning. Jinja decides when it compiles whether a name is a
        variable of the caller, which this library decides when it renders (docs/chat.md)."""
        return "{% set one = 1 %}{% set two = 'x' %}{% set new, i, ns = none, 0, none %}" + self.body(3)

    def statement(self, depth, loop=False):
        r = self.r
        if depth <= 0:
            return self.output()
        e = lambda: self.expression(r.randint(0, 2))
        b = lambda: self.body(depth - 1, loop)
        name = r.choice(['one', 'two', 'new', 'i'])
        kinds = [
            self.output, self.output, lambda: self.loop(depth),
            lambda: self.tag(f'if {e()}') + b() + r.choice(['', self.tag(f'elif {e()}') + b()]) + r.choice(['', self.tag('else') + b()]) + self.tag('endif'),
            lambda: self.tag(f'set {name} = {e()}'),
            lambda: self.tag(f'set new{r.choice(["", "|trim", "|upper|length"])}') + b() + self.tag('endset') + '{{ new }}',
            lambda: self.tag('set ns = namespace(v=0)') + self.loop(depth).replace('{{ n }}', '{% set ns.v = ns.v + 1 %}', 1) + '{{ ns.v }}',
            lambda: self.tag(f'macro mac(a, b={e()})') + '{{ a }}/{{ b }}' + self.body(depth - 1) + self.tag('endmacro') +
            r.choice(["{{ mac(1) }}", "{{ mac(b=n, a='z') }}", "{{ mac() }}", "{{ mac(1, 2, 3) }}", "{{ mac(c=1) }}"]),
            lambda: self.tag('macro wrap(t)') + '<{{ caller(t) }}>' + self.tag('endmacro') + self.tag('call(v) wrap(n)') + '{{ v }}' + self.body(depth - 1) + self.tag('endcall'),
            lambda: self.tag(f'with {name} = {e()}, s = n') + b() + self.tag('endwith'),
            lambda: self.tag('filter upper') + b() + self.tag('endfilter'),
            lambda: self.tag('generation') + self.body(depth - 1) + self.tag('endgeneration'),
            lambda: '{#' + r.choice(['', '-', '+']) + ' comment {{ n }} ' + r.choice(['', '-', '+']) + '#}',
            lambda: self.tag('raw') + '{{ raw }} {% x' + self.text() + self.tag('endraw'),
        ]
        return r.choice(kinds)()

    # ---- Conversations ----

    def content(self):
        r = self.r
        words = ['Hello', 'world', 'é', '世界', '🎉', '<tag> & "q"', "it's", '{{ x }}', '\n', '  ', '/think', '/no_think', '<think>\nwhy\n</think>\n\n', '\t', '</s>', '1.5']
        return r.choice(['', ' ', '\n']) + ' '.join(r.choice(words) for _ in range(r.randint(0, 6))) + r.choice(['', ' ', '\n\n'])

    def value(self, depth):
        r = self.r
        if depth <= 0 or r.random() < 0.4:
            return r.choice([1, -2, 0.5, 1e22, True, None, 'text', 'é "q"\n', ''])
        if r.random() < 0.5:
            return [self.value(depth - 1) for _ in range(r.randint(0, 3))]
        return {self.r.choice(['a', 'b c', 'ü', 'n']): self.value(depth - 1) for _ in range(r.randint(0, 3))}

    def schema(self, depth):
        r = self.r
        kind = r.choice(['string', 'number', 'integer', 'boolean', 'array', 'object', ['string', 'null']])
        s = {'type': kind, 'description': self.content()}
        if kind == 'array' and depth:
            s['items'] = self.schema(depth - 1)
        if kind == 'object':
            s['properties'] = {f'p{i}': self.schema(depth - 1) for i in range(r.randint(0, 2))} if depth else {}
        if r.random() < 0.2:
            s['default'] = self.value(1)
        if r.random() < 0.2:
            s['enum'] = ['a', 'b']
        return s

    def tools(self):
        r = self.r
        return [{'type': 'function', 'function': {
            'name': f'tool_{i}', 'description': self.content(),
            'parameters': {'type': 'object', 'properties': {f'x{j}': self.schema(2) for j in range(r.randint(0, 3))}, 'required': ['x0']}}}
            for i in range(r.randint(1, 3))]

    def call(self):
        r = self.r
        f = {'name': 'tool_0', 'arguments': r.choice([{'x0': self.value(2)}, {'x0': self.value(2)}, json.dumps({'x': 1})])}
        return r.choice([{'type': 'function', 'function': f, 'id': 'abcdefghi'}, {'type': 'function', 'function': f, 'id': 'abcdefghi'}, f])

    def messages(self):
        r = self.r
        out = [{'role': 'system', 'content': self.content()}] if r.random() < 0.5 else []
        for i in range(r.randint(1, 6)):
            role = ('user', 'assistant')[i % 2] if r.random() < 0.95 else r.choice(['user', 'assistant', 'tool', 'system', 'other'])
            m = {'role': role, 'content': self.content()}
            if r.random() < 0.04:
                m['content'] = [{'type': 'text', 'text': self.content()}, {'type': 'image'}]
            if role == 'assistant' and r.random() < 0.2:
                m['tool_calls'] = [self.call() for _ in range(r.randint(1, 2))]
                if r.random() < 0.5:
                    m['content'] = r.choice([None, ''])
            if role == 'assistant' and r.random() < 0.2:
                m[r.choice(['reasoning_content', 'thinking', 'reasoning'])] = self.content()
            out.append(m)
            if 'tool_calls' in m and r.random() < 0.8:
                out.extend({'role': 'tool', 'content': r.choice([self.content(), '{"a": 1}']), 'name': 'tool_0', 'tool_call_id': 'abcdefghi'}
                           for _ in m['tool_calls'])
        return out
