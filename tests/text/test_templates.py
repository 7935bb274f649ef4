"""test_templates.py RENDER_LINES: chat templates against Jinja in the way that transformers sets it up.

Templates in the style of the families in templates/ get random conversations; random expressions and random templates
get fixed variables. Both sides must give the same text and the same generation spans, or both must fail. What this
library refuses by design (TG_ERR_UNSUPPORTED, integers beyond 64 bits, the text of iterators) may fail alone, in a
small share of the cases.
"""
import datetime
import json
import os
import pathlib
import subprocess
import sys
import warnings

import transformers.utils.chat_template_utils as chat_utils
from random_templates import Maker, VARIABLES

NOW = 1700000000
ROUNDS = int(os.environ.get('TG_TEMPLATE_ROUNDS', '1'))
KNOWN = ('more than 64 bits', 'has no text; did you forget', 'TG_ERR_UNSUPPORTED')


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


chat_utils.datetime = Frozen
warnings.simplefilter('ignore', SyntaxWarning)  # of Python about what Jinja compiles


def bytes_of(text, spans):
    """Spans of characters as spans of bytes."""
    at = lambda i: len(text[:i].encode())
    return [[at(a), at(b)] for a, b in spans]


def reference(case):
    if 'messages' in case:
        extra = {k: v for k, v in {'bos_token': case.get('bos'), 'eos_token': case.get('eos')}.items() if v is not None}
        extra.update(case.get('more') or {})
        args = dict(conversations=[case['messages']], chat_template=case['template'], tools=case.get('tools'),
                    add_generation_prompt=case.get('prompt', False), continue_final_message=case.get('continue', False), **extra)
        if case.get('continue'):
            return chat_utils.render_jinja_template(**args)[0][0], []
        texts, spans = chat_utils.render_jinja_template(return_assistant_tokens_mask=True, **args)
        return texts[0], bytes_of(texts[0], spans[0])
    template = chat_utils._compile_jinja_template(case['template'])
    blocks, spans = [], []
    with template.environment.activate_tracker(blocks, spans):
        for block in template.generate(**case['variables']):
            blocks.append(block)
    text = ''.join(blocks)
    text.encode()
    return text, bytes_of(text, spans)


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, case):
        self.process.stdin.write(json.dumps({**case, 'now': NOW}).encode() + b'\n')
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Count:
    def __init__(self):
        self.same = self.failed = self.alone = 0
        self.wrong = []

    def check(self, case, ours):
        if case.get('continue'):
            ours.pop('spans', None)  # the reference has none
        try:
            want = reference(case)
        except Exception as e:  # whatever a template makes Python raise
            if 'error' in ours:
                self.failed += 1
            else:
                self.wrong.append((case, f'{type(e).__name__}: {e}', ours))
            return
        if 'error' in ours and any(k in ours['error'] + ours['status'] for k in KNOWN):
            self.alone += 1
        elif 'error' in ours or [ours['text'], ours.get('spans', [])] != [want[0], want[1]]:
            self.wrong.append((case, want, ours))
        else:
            self.same += 1

    def report(self, name):
        print(f'{name}: {self.same} equal, {self.failed} fail in both, {self.alone} refused here alone, {len(self.wrong)} differ')
        for case, want, ours in self.wrong[:int(os.environ.get('TG_TEMPLATE_SHOW', '3'))]:
            print('  template ', repr(case['template'][:400]))
            if 'messages' in case:
                print('  messages ', json.dumps(case['messages'], ensure_ascii=False)[:600])
            print('  expected ', repr(want)[:600])
            print('  found    ', repr(ours)[:600])
        enough = self.same > 5 * self.alone and self.same >= self.failed / 20
        return not self.wrong and enough


def conversations(render, source, seeds):
    count = Count()
    for seed in seeds:
        m = Maker(seed)
        case = {'template': source, 'messages': m.messages(), 'bos': '<s>', 'eos': '</s>', 'prompt': m.r.random() < 0.5}
        if m.r.random() < 0.4:
            case['tools'] = m.tools()
        if m.r.random() < 0.3:
            case['more'] = {'enable_thinking': m.r.random() < 0.5, 'tools_in_user_message': m.r.random() < 0.5}
        if m.r.random() < 0.1:
            case['prompt'], case['continue'] = False, True
        count.check(case, render(case))
    return count


def variables(render, make, seeds):
    count = Count()
    for seed in seeds:
        case = {'template': make(Maker(seed)), 'variables': VARIABLES}
        count.check(case, render(case))
    return count


def main(program):
    render = Renderer(program)
    good = True
    for path in sorted(pathlib.Path(__file__).with_name('templates').glob('*.jinja')):
        count = conversations(render, path.read_text(), range(150 * ROUNDS))
        good &= count.report(path.name)
    expression = lambda m: '{{ ' + m.expression(m.r.randint(1, 3)) + ' }}'
    good &= variables(render, expression, range(4000 * ROUNDS)).report('expressions')
    good &= variables(render, Maker.template, range(2000 * ROUNDS)).report('templates')
    return 0 if good else 1


sys.exit(main(sys.argv[1]))
