"""Beam pipelines over :mod:`migrate`: thin, each fits one screen.

transforms.py   Rewrite, Verify, Receipts, Commit as PTransforms
batch.py        Create(items) | Rewrite | Verify | Receipts | Commit
runners.py      runner names -> Beam runners and options
"""
