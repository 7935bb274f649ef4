"""Chooses some of many cases, others for each commit, as tests/ops/registry.h does in C."""

import os


def in_turn(name, cases):
    """Returns every N-th case if TG_TEST_SHARE_<name> is N; TG_TEST_TURN says which. Otherwise returns all."""
    share, turn = int(os.environ.get('TG_TEST_SHARE_' + name, '1')), int(os.environ.get('TG_TEST_TURN', '0'))
    return [case for i, case in enumerate(cases) if (i + turn) % share == 0]
